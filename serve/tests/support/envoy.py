"""Asks as Envoy does: a client of gRPC with the messages that others made of the public .proto.

The argument is the address. Each line of the input is a question in JSON, as protobuf writes it, and
each line of the output the answer, or the name of an error.
"""

import json
import sys

import grpc
from envoy.service.ratelimit.v3 import rls_pb2, rls_pb2_grpc
from google.protobuf import json_format

with grpc.insecure_channel(sys.argv[1]) as channel:
    service = rls_pb2_grpc.RateLimitServiceStub(channel)
    for line in sys.stdin:
        question = json_format.Parse(line, rls_pb2.RateLimitRequest())
        try:
            answer = service.ShouldRateLimit(question, timeout=20)
            print(json.dumps(json_format.MessageToDict(answer)), flush=True)
        except grpc.RpcError as error:
            print(json.dumps({"error": error.code().name}), flush=True)
