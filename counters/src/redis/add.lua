-- Adds to a counter, and sets its expiry if it has none.
--
-- KEYS: the counter. ARGV: the number to add, and the expiry in milliseconds. Returns the sum as
-- text, which may be too large for a number of Lua, and the expiry.
redis.call('INCRBY', KEYS[1], ARGV[1])
local expiry = redis.call('PTTL', KEYS[1])
if expiry < 0 then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    expiry = redis.call('PTTL', KEYS[1])
end
return { redis.call('GET', KEYS[1]), expiry }
