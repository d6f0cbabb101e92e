"""The Lua scripts: every change of the log is one of them, so it happens as a whole or not at all.

Keys, each behind the log's prefix:

=================  ==========  =====================================================================================
``log``            hash        ``format``, ``shards``, ``identity``, ``ancestors``, ``record_version`` and
                               ``directory_token``
``shard:N``        hash        ``start``, ``sealed``, ``end``, ``bytes``, ``ns`` of shard N; what is not there is 0
``frames:N``       stream      hot frames; the id ``OFFSET-1`` has the offset of the first event
``streams:N``      hash        GUID and topic -> position, as `durable_log.core.positions` encodes it; it stays with
                               the parent of shard N until something is appended to the stream in N
``numbers:N:...``  sorted set  of a stream: offsets of its hot frames, by the number of their first event
``active``         sorted set  shard, GUID and topic, by the second of the last append
``segments:N``     hash        first offset -> manifest entry
``values``         hash        name -> value of a record
``versions``       hash        name -> version of a record
``names``          sorted set  names of the records, in order
=================  ==========  =====================================================================================

The first argument is the prefix; the last one is the identity of the log that the caller has opened.  A server that was
emptied, or has another log there now, refuses: nothing is written, and nothing is read as if it were the same.

A frame's checksum covers what only the script knows, its offset and time, and the CRC that the client has made of the
frame itself: `frame_mark` makes the same of what is read.

Numbers above 10**14 would be printed with an exponent by Lua, so they are formatted by hand; 2**53 is far beyond what a
shard holds.  Times are nanoseconds as text of equal length, which compares like the numbers.
"""

from __future__ import annotations

import hashlib
import zlib

from durable_log.log_api import CLOCK_AHEAD_MAX_NS

FORMAT = "2"
"""Of what the keys hold.  The first had no checksums, and did not say so."""

REPLACED = "REPLACED"
"""The first word of the error when another log is there than the one that was opened; the other's identity follows."""

WRONG_END = "WRONGEND"
"""The first word of the error when a shard has frames behind its end; the shard follows."""

OTHER_SHARDS = 2
"""What an append begins its answer with when the log does not have as many shards as the caller thinks."""

LEASE_LOST = "LEASELOST"
"""The error when the fence of a change does not hold, see `durable_log.segments.lease`."""

# A script whose key is not there would stop half way on a node of a cluster that hands the slot over, with a part
# written.  A key that never exists lets such a node refuse it before that.
_WHOLE = """
redis.call('EXISTS', ARGV[1] .. 'never')
"""

_COMMON = (
    _WHOLE
    + """
local prefix, identity = ARGV[1], table.remove(ARGV)
local known = redis.call('HGET', prefix .. 'log', 'identity') or ''
if known ~= identity then return redis.error_reply('REPLACED ' .. known) end
local function text(number) return string.format('%.0f', number) end
local function is_lost(name, mark)
    return name ~= '' and string.sub(redis.call('HGET', prefix .. 'values', name) or '', 1, #mark) ~= mark
end
local lost = redis.error_reply('LEASELOST')
local function field(shard, name) return tonumber(redis.call('HGET', prefix .. 'shard:' .. shard, name) or '0') end
"""
)


_sha1, _crc32 = hashlib.sha1, zlib.crc32  # looked up once: they are needed for every frame


def frame_crc(frame: bytes) -> int:
    """What the script is told of a frame, so that it need not read it."""
    return _crc32(frame)


def frame_mark(
    shard: int, offset: bytes, count: bytes, skipped: bytes, appended_ns: bytes, key: bytes, frame: bytes
) -> bytes:
    """The checksum of an entry of a stream, from what is stored in it."""
    marked = b"%d %b %b %b %b %b %d" % (shard, offset, count, skipped, appended_ns, key, _crc32(frame))
    return _sha1(marked, usedforsecurity=False).hexdigest()[:16].encode()


# A log of another format is left as it is.  One that has an identity and says nothing of its format may have this one:
# that an entry has a checksum is what tells.
INITIALIZE = (
    _WHOLE
    + """
local prefix, key = ARGV[1], ARGV[1] .. 'log'
local shards, identity, format = unpack(redis.call('HMGET', key, 'shards', 'identity', 'format'))
if shards and format ~= 'FORMAT' then
    local is_known = identity and not format
    for shard = 0, tonumber(shards) - 1 do
        local oldest = redis.call('XRANGE', prefix .. 'frames:' .. shard, '-', '+', 'COUNT', 1)[1]
        if oldest and oldest[2][11] ~= 'x' then is_known = false end
    end
    if not is_known then return {format or ''} end
end
redis.call('HSETNX', key, 'shards', ARGV[2])
redis.call('HSETNX', key, 'identity', ARGV[3])
redis.call('HSETNX', key, 'format', 'FORMAT')
return redis.call('HMGET', key, 'format', 'shards', 'identity', 'ancestors')
""".replace("FORMAT", FORMAT)
)

# The last argument is how many shards the caller knows of.  Parents are those of a stream's shard, newest first, with
# commas between them: the position is with one of them until the stream is met in its own shard.
APPEND = (
    _COMMON
    + """
local shards = redis.call('HGET', prefix .. 'log', 'shards')
if shards ~= table.remove(ARGV) then return {2} end
local streams = tonumber(ARGV[2])
local next = 3
local keys, conflicts, checked, former = {}, {}, {}, {}
for index = 1, streams do
    local shard, key, old, parents = ARGV[next], ARGV[next + 1], ARGV[next + 2], ARGV[next + 4]
    if not checked[shard] then
        checked[shard] = true
        local last = redis.call('XREVRANGE', prefix .. 'frames:' .. shard, '+', '-', 'COUNT', 1)[1]
        if last and tonumber(string.match(last[1], '^(%d+)')) >= field(shard, 'end') then
            return redis.error_reply('WRONGEND ' .. shard)
        end
    end
    local found = redis.call('HGET', prefix .. 'streams:' .. shard, key)
    for parent in string.gmatch(found and '' or parents, '%d+') do
        found = redis.call('HGET', prefix .. 'streams:' .. parent, key)
        if found then
            former[index] = parent
            break
        end
    end
    found = found or ''
    if found ~= old then
        conflicts[#conflicts + 1] = index
        conflicts[#conflicts + 1] = found
    end
    keys[index] = key
    next = next + 5
end
if #conflicts > 0 then return {0, conflicts} end
local time = redis.call('TIME')
local now = time[1] .. string.format('%06d', tonumber(time[2])) .. '000'
local latest = text(tonumber(time[1]) + AHEAD_S) .. string.sub(now, -9)  -- what is later was stamped by a wrong clock
next = 3
for index = 1, streams do
    redis.call('HSET', prefix .. 'streams:' .. ARGV[next], ARGV[next + 1], ARGV[next + 3])
    redis.call('ZADD', prefix .. 'active', time[1], ARGV[next] .. ':' .. ARGV[next + 1])
    if former[index] then
        redis.call('HDEL', prefix .. 'streams:' .. former[index], ARGV[next + 1])
        redis.call('ZREM', prefix .. 'active', former[index] .. ':' .. ARGV[next + 1])
    end
    next = next + 5
end
local ends, sizes, stamps, order = {}, {}, {}, {}
while ARGV[next] do
    local shard, key, first, count = ARGV[next], keys[tonumber(ARGV[next + 1])], ARGV[next + 2], ARGV[next + 3]
    local skipped, frame, crc = ARGV[next + 4], ARGV[next + 5], ARGV[next + 6]
    if not ends[shard] then
        ends[shard], sizes[shard] = field(shard, 'end'), 0
        local before = redis.call('HGET', prefix .. 'shard:' .. shard, 'ns') or ''
        stamps[shard] = before > now and before <= latest and before or now
        order[#order + 1] = shard
    end
    local offset = text(ends[shard])
    local stamp = stamps[shard]
    local mark = redis.sha1hex(
        shard .. ' ' .. offset .. ' ' .. count .. ' ' .. skipped .. ' ' .. stamp .. ' ' .. key .. ' ' .. crc)
    redis.call('XADD', prefix .. 'frames:' .. shard, offset .. '-1',
               'c', count, 's', skipped, 't', stamp, 'k', key, 'f', frame, 'x', string.sub(mark, 1, 16))
    redis.call('ZADD', prefix .. 'numbers:' .. shard .. ':' .. key, first, offset)
    ends[shard] = ends[shard] + tonumber(count)
    sizes[shard] = sizes[shard] + #frame
    next = next + 7
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
""".replace("AHEAD_S", str(CLOCK_AHEAD_MAX_NS // 10**9))
)

ADD_SHARDS = (
    _COMMON
    + """
local before, after, name = tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
if tonumber(redis.call('HGET', prefix .. 'log', 'shards')) ~= before then return 0 end
local line = {ARGV[3]}
for shard = 0, before - 1 do line[#line + 1] = text(field(shard, 'end')) end
local value = (redis.call('HGET', prefix .. 'values', name) or '') .. table.concat(line, ' ') .. '\\n'
for shard = before, after - 1 do
    local stamp = redis.call('HGET', prefix .. 'shard:' .. (shard % before), 'ns')
    if stamp then redis.call('HSET', prefix .. 'shard:' .. shard, 'ns', stamp) end
end
local version = text(redis.call('HINCRBY', prefix .. 'log', 'record_version', 1))
redis.call('HSET', prefix .. 'log', 'shards', text(after))
redis.call('HSET', prefix .. 'versions', name, version)
redis.call('HSET', prefix .. 'values', name, value)
redis.call('ZADD', prefix .. 'names', 0, name)
return value
"""
)

# The client checks what was looked at: a damaged entry may have led astray.
FIND = (
    _COMMON
    + """
local shard, wanted = ARGV[2], ARGV[3]
local key = prefix .. 'frames:' .. shard
local low, high = math.max(field(shard, 'sealed'), field(shard, 'start')), field(shard, 'end')
local function offset_of(entry) return tonumber(string.match(entry[1], '^(%d+)')) end
local looked_at = {}
while low < high do
    local middle = math.floor((low + high) / 2)
    local found = redis.call('XREVRANGE', key, text(middle) .. '-1', text(low) .. '-1', 'COUNT', 1)[1]
    local stop = low
    if found then
        looked_at[#looked_at + 1] = found
        stop = offset_of(found) + (tonumber(found[2][2]) or 0)
    end
    if stop <= middle then  -- no frame has the offset
        local behind = redis.call('XRANGE', key, '(' .. text(middle) .. '-1', '+', 'COUNT', 1)[1]
        return {looked_at, text(stop), text(behind and offset_of(behind) or high)}
    end
    if (found[2][6] or '') >= wanted then high = offset_of(found) else low = stop end
end
return {looked_at, text(low)}
"""
)

ADD_SEGMENT = (
    _COMMON
    + """
local shard = ARGV[2]
if is_lost(ARGV[6], ARGV[7]) then return lost end
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
if is_lost(ARGV[6], ARGV[7]) then return lost end
local expected, found = {}, 0
for index = 8, #ARGV do expected[ARGV[index]] = true end
local entries = redis.call('HGETALL', key)
for index = 1, #entries, 2 do
    local place = tonumber(entries[index])
    if place >= first and place < stop then
        if not expected[entries[index + 1]] then return 0 end
        found = found + 1
    end
end
if found ~= #ARGV - 7 then return 0 end
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

# Frames that are sealed or dropped are invisible already.  They leave in portions, so that no client waits long.
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

RESTORE = (
    _COMMON
    + """
local shard, count = ARGV[2], tonumber(ARGV[6])
local key, next = prefix .. 'segments:' .. shard, 7
redis.call('DEL', key)
for _ = 1, count do
    redis.call('HSET', key, ARGV[next], ARGV[next + 1])
    next = next + 2
end
redis.call('HSET', prefix .. 'shard:' .. shard, 'start', ARGV[3], 'sealed', ARGV[4], 'end', ARGV[5])
return 1
"""
)

RESTORE_STREAMS = (
    _COMMON
    + """
local now = redis.call('TIME')[1]
for index = 3, #ARGV, 2 do
    redis.call('HSET', prefix .. 'streams:' .. ARGV[2], ARGV[index], ARGV[index + 1])
    redis.call('ZADD', prefix .. 'active', now, ARGV[2] .. ':' .. ARGV[index])
end
"""
)

FORGET_STREAM = (
    _COMMON
    + """
redis.call('HDEL', prefix .. 'streams:' .. ARGV[2], ARGV[3])
redis.call('ZREM', prefix .. 'active', ARGV[2] .. ':' .. ARGV[3])
"""
)

RENAME = (
    _COMMON
    + """
redis.call('HSET', prefix .. 'log', 'identity', ARGV[2], 'ancestors', ARGV[3])
"""
)

SET_DIRECTORY_TOKEN = (
    _COMMON
    + """
if is_lost(ARGV[3], ARGV[4]) then return lost end
redis.call('HSET', prefix .. 'log', 'directory_token', ARGV[2])
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
