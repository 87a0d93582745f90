-- Returns the time (seconds, microseconds), and the text of each quota.
local time = redis.call('TIME')
local texts = { time[1], time[2] }
for i = 1, #KEYS do
    texts[i + 2] = redis.call('GET', KEYS[i]) or ''
end
return texts
