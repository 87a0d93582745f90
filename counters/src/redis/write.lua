-- Writes all quotas if each of them has the text that was read, and the read is not too old.
--
-- KEYS: the quotas. ARGV: the time of the read and the largest age, in microseconds; then for each
-- key the text that was read, the text to write, and its expiry in milliseconds. Returns 1 or 0.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
if now - tonumber(ARGV[1]) > tonumber(ARGV[2]) then
    return 0
end
for i = 1, #KEYS do
    if (redis.call('GET', KEYS[i]) or '') ~= ARGV[i * 3] then
        return 0
    end
end
for i = 1, #KEYS do
    redis.call('SET', KEYS[i], ARGV[i * 3 + 1], 'PX', ARGV[i * 3 + 2])
end
return 1
