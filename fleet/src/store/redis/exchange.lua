-- An exchange of a member with a pool. Returns how long no partition is granted, in microseconds,
-- and what was renewed, granted and found taken, and the members as text.
--
-- KEYS[1]: the pool, a hash
--   run     the run of the server that wrote last
--   since   the first exchange in that run, in microseconds of the server's clock, as all times
--   longest the longest lease that a member has asked for
--   fence   the newest fence
--   p:N     partition N: member, fence, end
--   m:ID    a member: demand, served, end, number of its newest exchange
-- ARGV: member, number of the exchange, lease, demand, served, most partitions to grant, number of
--   renewals, of releases and of candidates; then the renewals and releases as pairs of partition
--   and fence, and the candidates
local pool = KEYS[1]
local member, number = ARGV[1], tonumber(ARGV[2])
local lease, demand, served = tonumber(ARGV[3]), ARGV[4], ARGV[5]
local most = tonumber(ARGV[6])
local text = function(value) return string.format('%.0f', value) end

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
if not run then
  return redis.error_reply('DAMAGED no run_id')
end

-- Reads the pool.
local facts, partitions, members = {}, {}, {}
local stored = redis.call('HGETALL', pool)
for at = 1, #stored, 2 do
  local name, value = stored[at], stored[at + 1]
  local kind, id = string.match(name, '^([pm]):(%w+)$')
  local ends = true
  if kind == 'p' then
    local of, fence
    of, fence, ends = string.match(value, '^(%w+) (%d+) (%d+)$')
    partitions[id] = { member = of, fence = tonumber(fence), ends = tonumber(ends) }
  elseif kind == 'm' then
    local wants, had, newest
    wants, had, ends, newest = string.match(value, '^(%d+) (%d+) (%d+) (%d+)$')
    members[id] = { demand = wants, served = had, ends = tonumber(ends), number = tonumber(newest) }
  else
    facts[name] = value
  end
  if not ends then
    return redis.error_reply('DAMAGED ' .. name)
  end
end

-- A request that was overtaken by a later one of the same member changes nothing.
local known = members[member]
if known and known.number >= number then
  return redis.error_reply('OVERTAKEN')
end

-- A server that may have forgotten leases grants none before the longest of them has ended. If the
-- clock was set back, that time begins again.
local since, longest = tonumber(facts.since), math.max(tonumber(facts.longest) or 0, lease)
if facts.run ~= run or not since or since > now then
  since = now
end
local hold_off = math.max(since + longest - now, 0)
local fence = math.max(tonumber(facts.fence) or 0, now)

-- What has ended is removed below. No lease lasts longer than the longest.
local removed, changed = {}, {}
for id, one in pairs(partitions) do
  if one.ends > now + longest then
    one.ends = now + longest
    changed[id] = true
  end
  one.over = one.ends <= now
end
for id, one in pairs(members) do
  if math.min(one.ends, now + longest) <= now then
    members[id] = nil
    table.insert(removed, 'm:' .. id)
  end
end

local at = 10
local function take()
  at = at + 1
  return ARGV[at - 1]
end
local renewed, granted, taken, mentioned = {}, {}, {}, {}
for _ = 1, ARGV[7] do
  local id, of = take(), tonumber(take())
  local one = partitions[id]
  if one and one.over then
    one = nil
  end
  local ours = one and one.member == member and one.fence == of
  -- The member says that it still holds the partition. While the server may have forgotten
  -- leases, it believes that, and the newest fence counts.
  local forgotten = hold_off > 0 and (not one or one.fence < of)
  if ours or forgotten then
    -- A shorter lease does not end earlier what was granted for longer.
    local ends = math.max(ours and one.ends or 0, now + lease)
    partitions[id] = { member = member, fence = of, ends = ends }
    changed[id], mentioned[id] = true, true
    fence = math.max(fence, of)
    table.insert(renewed, tonumber(id))
  end
end
for _ = 1, ARGV[8] do
  local id, of = take(), tonumber(take())
  local one = partitions[id]
  if one and one.member == member and one.fence == of then
    one.over, changed[id] = true, nil
  end
end
-- What the member has but does not name was granted by an answer that was lost. While the server may
-- have forgotten leases, it may have been released since, and be another member's.
for id, one in pairs(partitions) do
  if hold_off == 0 and one.member == member and not one.over and not mentioned[id] then
    one.ends = math.max(one.ends, now + lease)
    changed[id] = true
    table.insert(granted, tonumber(id))
    table.insert(granted, one.fence)
  end
end
for _ = 1, ARGV[9] do
  local id = take()
  local one = partitions[id]
  if one and not one.over then
    if one.member ~= member then
      table.insert(taken, tonumber(id))
    end
  elseif hold_off == 0 and #granted < 2 * most then
    fence = fence + 1
    partitions[id] = { member = member, fence = fence, ends = now + lease }
    changed[id] = true
    table.insert(granted, tonumber(id))
    table.insert(granted, fence)
  end
end

local held = 0
for id, one in pairs(partitions) do
  if one.over then
    table.insert(removed, 'p:' .. id)
    changed[id] = nil
  elseif one.member == member then
    held = held + 1
  elseif members[one.member] then
    members[one.member].held = (members[one.member].held or 0) + 1
  end
end

local written = {
  'run', run, 'since', text(since), 'longest', text(longest), 'fence', text(fence),
  'm:' .. member, table.concat({ demand, served, text(now + lease), text(number) }, ' '),
}
for id in pairs(changed) do
  local one = partitions[id]
  table.insert(written, 'p:' .. id)
  table.insert(written, one.member .. ' ' .. text(one.fence) .. ' ' .. text(one.ends))
end
-- No more arguments than a call may have.
for from = 1, #removed, 1000 do
  redis.call('HDEL', pool, unpack(removed, from, math.min(from + 999, #removed)))
end
for from = 1, #written, 1000 do
  redis.call('HSET', pool, unpack(written, from, math.min(from + 999, #written)))
end

local all = { table.concat({ member, demand, text(held), served }, ' ') }
for id, one in pairs(members) do
  if id ~= member then
    table.insert(all, table.concat({ id, one.demand, text(one.held or 0), one.served }, ' '))
  end
end
return { hold_off, renewed, granted, taken, all }
