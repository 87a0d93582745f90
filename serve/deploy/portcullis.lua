-- Asks portcullis-serve whether a request may pass. Needs HAProxy 2.6 or newer.
--
--     http-request lua.portcullis URL
--
-- The answer is in variables: txn.limit_status, and the header fields in txn.limit_retry,
-- txn.limit_state and txn.limit_policy. Without an answer, txn.limit_status is 0.

local fields = {
    ["retry-after"] = "txn.limit_retry",
    ["ratelimit"] = "txn.limit_state",
    ["ratelimit-policy"] = "txn.limit_policy",
}

core.register_action("portcullis", { "http-req" }, function(txn, url)
    local headers = {}
    for name, values in pairs(txn.http:req_get_headers()) do
        headers[name] = {}
        for index = 0, #values do
            headers[name][index + 1] = values[index]
        end
    end
    -- The body stays here.
    headers["content-length"] = nil
    headers["transfer-encoding"] = nil
    headers["connection"] = nil
    headers["host"] = nil
    headers["expect"] = nil
    headers["upgrade"] = nil
    -- All four, so that a client cannot choose one of them.
    headers["x-original-method"] = { txn.sf:method() }
    headers["x-original-uri"] = { txn.sf:pathq() }
    headers["x-original-host"] = { txn.sf:req_fhdr("host", 1) }
    headers["x-forwarded-for"] = { txn.sf:src() }

    local answer = core.httpclient():get({ url = url, headers = headers, timeout = 5000 })
    txn:set_var("txn.limit_status", answer and answer.status or 0)
    for name, variable in pairs(fields) do
        local values = answer and answer.headers and answer.headers[name]
        if values then
            txn:set_var(variable, values[0])
        end
    end
end, 1)
