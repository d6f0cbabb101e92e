"""The Lua scripts: every change of the log is one of them, so it happens as a whole or not at all.

Keys, each behind the log's prefix:

=================  ==========  =====================================================================================
``log``            hash        ``shards``, ``record_version``
``shard:N``        hash        ``start``, ``sealed``, ``end``, ``bytes``, ``ns`` of shard N; what is not there is 0
``frames:N``       stream      hot frames; the id ``OFFSET-1`` has the offset of the first event
``streams:N``      hash        GUID and topic -> position, as the client encodes it
``numbers:N:...``  sorted set  of a stream: offsets of its hot frames, by the number of their first event
``active``         sorted set  shard, GUID and topic, by the second of the last append
``segments:N``     hash        first offset -> manifest entry
``values``         hash        name -> value of a record
``versions``       hash        name -> version of a record
``names``          sorted set  names of the records, in order
=================  ==========  =====================================================================================

Numbers above 10**14 would be printed with an exponent by Lua, so they are formatted by hand; 2**53 is far beyond what a
shard holds.  Times are nanoseconds as text of equal length, which compares like the numbers.
"""

from __future__ import annotations

_COMMON = """
local prefix = ARGV[1]
local function text(number) return string.format('%.0f', number) end
local function field(shard, name) return tonumber(redis.call('HGET', prefix .. 'shard:' .. shard, name) or '0') end
"""

INITIALIZE = (
    _COMMON
    + """
redis.call('HSETNX', prefix .. 'log', 'shards', ARGV[2])
return redis.call('HGET', prefix .. 'log', 'shards')
"""
)

APPEND = (
    _COMMON
    + """
local streams = tonumber(ARGV[2])
local next = 3
local keys, conflicts = {}, {}
for index = 1, streams do
    local shard, key, old = ARGV[next], ARGV[next + 1], ARGV[next + 2]
    local found = redis.call('HGET', prefix .. 'streams:' .. shard, key) or ''
    if found ~= old then
        conflicts[#conflicts + 1] = index
        conflicts[#conflicts + 1] = found
    end
    keys[index] = key
    next = next + 4
end
if #conflicts > 0 then return {0, conflicts} end
local time = redis.call('TIME')
local now = time[1] .. string.format('%06d', tonumber(time[2])) .. '000'
next = 3
for _ = 1, streams do
    redis.call('HSET', prefix .. 'streams:' .. ARGV[next], ARGV[next + 1], ARGV[next + 3])
    redis.call('ZADD', prefix .. 'active', time[1], ARGV[next] .. ':' .. ARGV[next + 1])
    next = next + 4
end
local ends, sizes, stamps, order = {}, {}, {}, {}
while ARGV[next] do
    local shard, key, first, count = ARGV[next], keys[tonumber(ARGV[next + 1])], ARGV[next + 2], ARGV[next + 3]
    local skipped, frame = ARGV[next + 4], ARGV[next + 5]
    if not ends[shard] then
        ends[shard], sizes[shard] = field(shard, 'end'), 0
        local before = redis.call('HGET', prefix .. 'shard:' .. shard, 'ns') or ''
        stamps[shard] = before > now and before or now
        order[#order + 1] = shard
    end
    local offset = text(ends[shard])
    redis.call('XADD', prefix .. 'frames:' .. shard, offset .. '-1',
               'c', count, 's', skipped, 't', stamps[shard], 'k', key, 'f', frame)
    redis.call('ZADD', prefix .. 'numbers:' .. shard .. ':' .. key, first, offset)
    ends[shard] = ends[shard] + tonumber(count)
    sizes[shard] = sizes[shard] + #frame
    next = next + 6
end
local result = {}
for _, shard in ipairs(order) do
    local key = prefix .. 'shard:' .. shard
    redis.call('HSET', key, 'end', text(ends[shard]), 'ns', stamps[shard])
    redis.call('HINCRBY', key, 'bytes', text(sizes[shard]))
    result[#result + 1] = shard
    result[#result + 1] = text(ends[shard])
end
return {1, result}
"""
)

FIND = (
    _COMMON
    + """
local shard, wanted = ARGV[2], ARGV[3]
local low, high = math.max(field(shard, 'sealed'), field(shard, 'start')), field(shard, 'end')
while low < high do
    local middle = math.floor((low + high) / 2)
    local found = redis.call('XREVRANGE', prefix .. 'frames:' .. shard, text(middle) .. '-1', '-', 'COUNT', 1)[1]
    local offset = tonumber(string.match(found[1], '^(%d+)'))
    if found[2][6] >= wanted then high = offset else low = offset + tonumber(found[2][2]) end
end
return text(low)
"""
)

ADD_SEGMENT = (
    _COMMON
    + """
local shard = ARGV[2]
if field(shard, 'sealed') ~= tonumber(ARGV[3]) then return 0 end
redis.call('HSET', prefix .. 'segments:' .. shard, ARGV[3], ARGV[5])
redis.call('HSET', prefix .. 'shard:' .. shard, 'sealed', ARGV[4])
return 1
"""
)

REPLACE_SEGMENTS = (
    _COMMON
    + """
local key, first, stop, entry = prefix .. 'segments:' .. ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local expected, found = {}, 0
for index = 6, #ARGV do expected[ARGV[index]] = true end
local entries = redis.call('HGETALL', key)
for index = 1, #entries, 2 do
    local place = tonumber(entries[index])
    if place >= first and place < stop then
        if not expected[entries[index + 1]] then return 0 end
        found = found + 1
    end
end
if found ~= #ARGV - 5 then return 0 end
for index = 1, #entries, 2 do
    local place = tonumber(entries[index])
    if place >= first and place < stop then redis.call('HDEL', key, entries[index]) end
end
redis.call('HSET', key, ARGV[3], entry)
return 1
"""
)

DROP = (
    _COMMON
    + """
local shard, start = ARGV[2], tonumber(ARGV[3])
if field(shard, 'sealed') ~= tonumber(ARGV[4]) then return 0 end
local key = prefix .. 'segments:' .. shard
for _, place in ipairs(redis.call('HKEYS', key)) do
    if tonumber(place) < start then redis.call('HDEL', key, place) end
end
redis.call('HSET', prefix .. 'shard:' .. shard, 'start', text(math.max(field(shard, 'start'), start)),
           'sealed', text(math.max(field(shard, 'sealed'), start)))
return 1
"""
)

# Frames that are sealed or dropped are invisible already.  They leave in portions, so that nobody waits long.
PURGE = (
    _COMMON
    + """
local shard = ARGV[2]
local key, limit = prefix .. 'frames:' .. shard, field(shard, 'sealed')
if limit == 0 then return 0 end
local found = redis.call('XRANGE', key, '-', '(' .. text(limit) .. '-0', 'COUNT', ARGV[3])
if #found == 0 then return 0 end
local size = 0
for _, one in ipairs(found) do
    local numbers = prefix .. 'numbers:' .. shard .. ':' .. one[2][8]
    redis.call('ZREM', numbers, (string.match(one[1], '^(%d+)')))
    redis.call('XDEL', key, one[1])
    size = size + #one[2][10]
end
redis.call('HINCRBY', prefix .. 'shard:' .. shard, 'bytes', text(-size))
return #found
"""
)

FORGET = (
    _COMMON
    + """
local gone = 0
for _, member in ipairs(redis.call('ZRANGEBYSCORE', prefix .. 'active', '-inf', '(' .. ARGV[2], 'LIMIT', 0, ARGV[3])) do
    local shard, key = string.match(member, '^(%d+):(.*)$')
    if redis.call('EXISTS', prefix .. 'numbers:' .. shard .. ':' .. key) == 1 then
        redis.call('ZADD', prefix .. 'active', ARGV[2], member)  -- it has hot frames: looked at again another time
    else
        redis.call('ZREM', prefix .. 'active', member)
        gone = gone + redis.call('HDEL', prefix .. 'streams:' .. shard, key)
    end
end
return gone
"""
)

PUT_RECORDS = (
    _COMMON
    + """
for index = 2, #ARGV, 4 do
    local expected = ARGV[index + 1]
    local version = redis.call('HGET', prefix .. 'versions', ARGV[index]) or '0'
    if expected ~= '' and expected ~= version then return {0, ARGV[index], version, expected} end
end
local result = {1}
for index = 2, #ARGV, 4 do
    local name, is_delete, value = ARGV[index], ARGV[index + 2] == '1', ARGV[index + 3]
    local version = text(redis.call('HINCRBY', prefix .. 'log', 'record_version', 1))
    if is_delete then
        redis.call('HDEL', prefix .. 'versions', name)
        redis.call('HDEL', prefix .. 'values', name)
        redis.call('ZREM', prefix .. 'names', name)
    else
        redis.call('HSET', prefix .. 'versions', name, version)
        redis.call('HSET', prefix .. 'values', name, value)
        redis.call('ZADD', prefix .. 'names', 0, name)
    end
    result[#result + 1] = version
end
return result
"""
)

LIST_RECORDS = (
    _COMMON
    + """
local names = redis.call('ZRANGEBYLEX', prefix .. 'names', ARGV[2], ARGV[3])
local result = {}
for _, name in ipairs(names) do
    result[#result + 1] = name
    result[#result + 1] = redis.call('HGET', prefix .. 'values', name)
    result[#result + 1] = redis.call('HGET', prefix .. 'versions', name)
end
return result
"""
)
