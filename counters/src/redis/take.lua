-- Decides one request: takes the permits of all quotas, or of none.
--
-- KEYS: the quotas. ARGV: five numbers for each key:
--   token bucket: 0, units of a permit, units that return in a microsecond, burst, permits to take
--   windows:      segments, length of a segment in microseconds, 0, count, permits to take
--
-- Returns the time (seconds, microseconds), 1 if the permits were taken or 0, and the text of each
-- quota after the decision. The state and its transitions are those of `quota.rs`. All numbers are
-- whole and at most 2^53, so floating-point numbers are exact.

local MOST = 9007199254740992

local function floor_div(a, b)
    return (a - math.fmod(a, b)) / b
end

local function ceil_div(a, b)
    local rest = math.fmod(a, b)
    if rest == 0 then
        return a / b
    end
    return (a - rest) / b + 1
end

-- The permits that a quota of any limit says were taken, or nil if it is not a quota.
local function taken(quota)
    if #quota == 0 then
        return 0
    end
    if quota[1] == 0 then
        if #quota ~= 4 or quota[2] == 0 then
            return nil
        end
        return ceil_div(quota[4], quota[2])
    end
    if quota[1] > 64 or #quota ~= 3 + quota[1] or quota[2] == 0 then
        return nil
    end
    local sum = 0
    for i = 4, #quota do
        sum = sum + quota[i]
    end
    return sum
end

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local texts, quotas, allowed = {}, {}, 1

for i = 1, #KEYS do
    local a = (i - 1) * 5
    local segments, length = tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2])
    local rate, count = tonumber(ARGV[a + 3]), tonumber(ARGV[a + 4])
    local permits = tonumber(ARGV[a + 5])
    local needed = math.max(permits, 1)

    texts[i] = redis.call('GET', KEYS[i]) or ''
    if string.find(texts[i], '[^%d ]') then
        return redis.error_reply('DAMAGED ' .. KEYS[i])
    end
    local quota = {}
    for number in string.gmatch(texts[i], '%d+') do
        quota[#quota + 1] = tonumber(number)
        if quota[#quota] > MOST then
            return redis.error_reply('DAMAGED ' .. KEYS[i])
        end
    end
    local before = taken(quota)
    if not before then
        return redis.error_reply('DAMAGED ' .. KEYS[i])
    end
    before = math.min(before, count)

    if segments == 0 then
        local permit = length
        if #quota == 4 and quota[1] == 0 and quota[2] == permit then
            local missing = ceil_div(quota[4], rate)
            local elapsed = math.min(math.max(now - quota[3], 0), missing)
            quota[3] = math.max(quota[3], now)
            quota[4] = math.max(quota[4] - elapsed * rate, 0)
        else
            quota = { 0, permit, now, before * permit }
        end
        if needed > count or quota[4] + needed * permit > count * permit then
            allowed = 0
        end
        quota[4] = quota[4] + permits * permit
        quota.full = quota[3] + ceil_div(quota[4], rate)
    else
        local epoch = floor_div(now, length)
        if #quota == 3 + segments and quota[2] == length then
            local first = quota[3]
            quota[3] = math.max(first, epoch)
            for passed = first + 1, math.min(epoch, first + segments) do
                quota[4 + math.fmod(passed, segments)] = 0
            end
        else
            quota = { segments, length, epoch }
            for j = 1, segments do
                quota[3 + j] = 0
            end
            quota[4 + math.fmod(epoch, segments)] = before
        end
        local sum = 0
        for j = 4, 3 + segments do
            sum = sum + quota[j]
        end
        if sum + needed > count then
            allowed = 0
        end
        local current = 4 + math.fmod(quota[3], segments)
        quota[current] = quota[current] + permits
        quota.full = (quota[3] + segments) * length
    end
    quotas[i] = quota
end

if allowed == 1 then
    for i = 1, #KEYS do
        if tonumber(ARGV[i * 5]) > 0 then
            local quota, numbers = quotas[i], {}
            for j = 1, #quota do
                numbers[j] = string.format('%.0f', quota[j])
            end
            texts[i] = table.concat(numbers, ' ')
            -- Another program may have written a time of the far future.
            local millis = math.min(ceil_div(quota.full - now, 1000) + 1, MOST)
            redis.call('SET', KEYS[i], texts[i], 'PX', string.format('%.0f', millis))
        end
    end
end

return { time[1], time[2], allowed, unpack(texts) }
