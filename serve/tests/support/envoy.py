"""Asks as Envoy does: a client of gRPC with the messages that others made of the public .proto.

The argument is the address. Each line of the input is a question in JSON, as protobuf writes it, and
each line of the output the answer, or the name of an error. With `givesBack`, which is no field of
the question, each descriptor has `is_negative_hits`. Older messages do not know it.
"""

import json
import sys

import grpc
from envoy.service.ratelimit.v3 import rls_pb2, rls_pb2_grpc
from google.protobuf import json_format

with grpc.insecure_channel(sys.argv[1]) as channel:
    service = rls_pb2_grpc.RateLimitServiceStub(channel)
    for line in sys.stdin:
        question = json.loads(line)
        gives_back = question.pop("givesBack", False)
        question = json_format.ParseDict(question, rls_pb2.RateLimitRequest())
        if gives_back:
            for descriptor in question.descriptors:
                # The field 4, which is true.
                descriptor.MergeFromString(b"\x20\x01")
        try:
            answer = service.ShouldRateLimit(question, timeout=20)
            print(json.dumps(json_format.MessageToDict(answer)), flush=True)
        except grpc.RpcError as error:
            print(json.dumps({"error": error.code().name}), flush=True)
