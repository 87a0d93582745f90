-- Returns the value of each counter, or an empty text, and its expiry in milliseconds.
local counters = {}
for i = 1, #KEYS do
    counters[i * 2 - 1] = redis.call('GET', KEYS[i]) or ''
    counters[i * 2] = redis.call('PTTL', KEYS[i])
end
return counters
