-- An exchange of a member with a pool. Returns how long no partition is granted, in microseconds,
-- the newest fence, the number of the server, what was renewed, granted and found taken, and the
-- members as text.
--
-- KEYS[1]: the pool, a hash
--   run     the run of the server that wrote last
--   since   when the server began to hold off, in microseconds of its clock, as all times: at the
--           first exchange in that run, or when it learned of decisions that others made since
--   longest the longest lease that may last; until: when all leases of that length have ended, if
--           none is asked for again; next: the longest that was asked for since
--   fence   the newest fence
--   p:N     partition N: member, fence, end
--   m:ID    a member: demand, served, end, number of its newest exchange
-- ARGV: member, number of the exchange, lease, demand, served, most partitions to grant, number of
--   renewals, of releases and of candidates; of the last answer that the member has had, the number
--   of the server (0 for none), how long ago it was, and the newest fence; then the renewals and
--   releases as pairs of partition and fence, and the candidates
local pool = KEYS[1]
local member, number = ARGV[1], tonumber(ARGV[2])
local lease, demand, served = tonumber(ARGV[3]), ARGV[4], ARGV[5]
local most = tonumber(ARGV[6])
local heard, ago, seen = tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[12])
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

-- The transition of `Longest` in memory.rs. If the clock was set back, the end comes nearer.
local longest, shorter = tonumber(facts.longest) or 0, math.max(tonumber(facts.next) or 0, lease)
local ends_by = math.min(tonumber(facts['until']) or now + longest, now + longest)
if lease >= longest or now >= ends_by then
  longest = math.max(shorter, lease)
  ends_by, shorter = now + longest, 0
end

-- A server that may have forgotten leases, or does not know what another one has leased since,
-- grants none before the longest of them has ended. If the clock was set back, that time begins
-- again.
local since, server = tonumber(facts.since), tonumber(string.sub(run, 1, 13), 16)
if facts.run ~= run or not since or since > now then
  since = now
end
-- What was answered before is over when this server grants again.
if heard ~= 0 and heard ~= server and ago < longest and now - ago > since then
  since = now
end
local hold_off = math.max(since + longest - now, 0)
local fence = math.max(tonumber(facts.fence) or 0, seen, now)

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

local at = 13
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
  'run', run, 'since', text(since), 'fence', text(fence),
  'longest', text(longest), 'until', text(ends_by), 'next', text(shorter),
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
return { hold_off, fence, server, renewed, granted, taken, all }
