"""What runs inside of Redis, where one script at a time is carried out, alone and whole.

Lua's numbers are exact up to 2**53, and revisions stay below that until the year 2255.
"""

from __future__ import annotations

from heliograph_drivers.db.redis.link import make_script

RUN_STEP = 2**32
"""More revisions than a server can have lost when it comes back.  Needed only where its clock was set back."""

_PRELUDE = """
local function digits(number) return string.format('%.0f', number) end
local time = redis.call('TIME')
local micros = time[1] * 1000000 + time[2]
local function seconds(after) return string.format('%.6f', micros / 1000000 + after) end
local now = seconds(0)
"""

# Snapshots whose readers have not come back in time are forgotten, and with the last one what was kept for them.
_HAS_SNAPSHOTS = """
local function has_snapshots(snapshots, undo)
    if redis.call('EXISTS', snapshots) == 0 then return false end
    if redis.call('ZREMRANGEBYSCORE', snapshots, '-inf', now) > 0 and redis.call('EXISTS', snapshots) == 0 then
        redis.call('DEL', undo)
        return false
    end
    return true
end
"""

COMMIT = make_script(
    _PRELUDE
    + _HAS_SNAPSHOTS
    + """
local state, objects, names, deleted, deletions, feed, outbox, snapshots, undo = unpack(KEYS)
local run, count = ARGV[1], (#ARGV - 1) / 7
local records, topics, actions, answer, total = {}, {}, {}, {'done'}, 0

-- Four fields for each write: the version, the action (empty: nothing is written), the topic, the topic that is left.
local function tell(i, version, action, topic, left)
    local at = 4 * i - 2
    answer[at], answer[at + 1], answer[at + 2], answer[at + 3] = version, action, topic, left
end

for i = 1, count do
    local at = 7 * i - 5
    local action, name, topic, value, expected = unpack(ARGV, at, at + 4)
    local record = redis.call('HGET', objects, name)
    if record then
        local version, length = string.match(record, '^(%d+) (%d+) ')
        local start = #version + #length + 3
        if action == 'create' then return {'exists', i, version} end
        if expected ~= '' and expected ~= version then return {'conflict', i, version} end
        local old_topic = string.sub(record, start, start + length - 1)
        if action == 'put' then action = 'set' end
        local is_there = (topic == '' or topic == old_topic) and string.sub(record, start + length) == value
        if is_there and ARGV[at + 6] == '1' then
            tell(i, version, '', old_topic, '')
        else
            records[i], topics[i], actions[i], total = record, old_topic, action, total + 1
        end
    elseif action == 'create' or (action == 'put' and expected == '') then
        actions[i], total = 'create', total + 1
    else
        return {'missing', i, redis.call('HGET', deleted, name)}
    end
end
if total == 0 then return answer end

-- A revision is the server's clock in microseconds, or one more than the last.  There are fewer writes than
-- microseconds, so it is above all that were given, also above those that this server has lost or that were taken from
-- it.  Where the clock was set back, another process of the server than wrote last may have lost the end of the feed.
local last = tonumber(redis.call('HGET', state, 'revision') or 0)
local first = micros
if first <= last then
    first = last + 1
    if redis.call('HGET', state, 'run') ~= run then first = last + RUN_STEP end
end
redis.call('HSET', state, 'run', run, 'revision', digits(first - 1))

local is_watched = has_snapshots(snapshots, undo)

local function write(i, action)
    local at = 7 * i - 5
    local name, topic, value, with_outbox = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 5]
    local old_topic = topics[i]
    local left = ''
    if topic == '' then topic = old_topic
    elseif action == 'set' and topic ~= old_topic then left = old_topic end
    local revision = digits(redis.call('HINCRBY', state, 'revision', 1))
    if is_watched and records[i] then
        redis.call('XADD', undo, revision .. '-0', 'name', name, 'record', records[i])
    end
    if action == 'delete' then
        redis.call('HDEL', objects, name)
        redis.call('ZREM', names, name)
        redis.call('HSET', deleted, name, revision)
        redis.call('ZADD', deletions, now, name)
    else
        redis.call('HSET', objects, name, revision .. ' ' .. #topic .. ' ' .. topic .. value)
        if action == 'create' then
            redis.call('ZADD', names, 0, name)
            if redis.call('HDEL', deleted, name) == 1 then redis.call('ZREM', deletions, name) end
        end
    end
    redis.call('XADD', feed, revision .. '-0', 'action', action, 'name', name, 'topic', topic, 'left', left,
               'time', now, 'value', value)
    if with_outbox == '1' then redis.call('ZADD', outbox, revision, revision) end
    tell(i, revision, action, topic, left)
end

for i = 1, count do
    if actions[i] then write(i, actions[i]) end
end
return answer
""".replace("RUN_STEP", str(RUN_STEP))
)

# ARGV: revisions.  Answers with the newest, the one up to which the feed is compacted, and those that the feed has.
# Without their values, which is why it is a script.
LOOK_UP = make_script(
    """
local state, feed = unpack(KEYS)
local answer = {redis.call('HGET', state, 'revision') or '0', redis.call('HGET', state, 'compacted') or '0'}
for _, revision in ipairs(ARGV) do
    if #redis.call('XRANGE', feed, revision, revision) > 0 then answer[#answer + 1] = revision end
end
return answer
"""
)

# ARGV: how many changes to keep, how many to remove at most.  Answers with how many were removed.
TRIM = make_script(
    """
local state, feed, outbox, kept = unpack(KEYS)
local count = math.min(redis.call('XLEN', feed) - ARGV[1], tonumber(ARGV[2]))
if count <= 0 then return 0 end
local last
for _, entry in ipairs(redis.call('XRANGE', feed, '-', '+', 'COUNT', count)) do
    last = string.match(entry[1], '^%d+')
    if redis.call('ZSCORE', outbox, last) then redis.call('XADD', kept, entry[1], unpack(entry[2])) end
end
redis.call('XTRIM', feed, 'MINID', '=', last .. '-1')
redis.call('HSET', state, 'compacted', last)
return count
"""
)

# ARGV: the age in seconds, how many to remove at most.  Answers with how many were removed.
BURY = make_script(
    _PRELUDE
    + """
local deleted, deletions = unpack(KEYS)
local expired = redis.call('ZRANGEBYSCORE', deletions, '-inf', seconds(-ARGV[1]), 'LIMIT', 0, ARGV[2])
for _, name in ipairs(expired) do
    redis.call('HDEL', deleted, name)
    redis.call('ZREM', deletions, name)
end
return #expired
"""
)

# ARGV: a name that no other snapshot has, how long it is good for.  Answers with the revision and the name it is known
# under.
BEGIN_SNAPSHOT = make_script(
    _PRELUDE
    + _HAS_SNAPSHOTS
    + """
local state, snapshots, undo = unpack(KEYS)
has_snapshots(snapshots, undo)
local revision = redis.call('HGET', state, 'revision') or '0'
local member = revision .. ' ' .. ARGV[1]
redis.call('ZADD', snapshots, seconds(ARGV[2]), member)
return {revision, member}
"""
)

# ARGV: the snapshot, empty for one that the server was not told of, how long it is good for now, a range of names, how
# many.  Answers with the revision, names and records in turn; nothing when the snapshot is forgotten.
READ_SNAPSHOT = make_script(
    _PRELUDE
    + """
local state, snapshots, objects, names = unpack(KEYS)
if ARGV[1] ~= '' then
    if not redis.call('ZSCORE', snapshots, ARGV[1]) then return false end
    redis.call('ZADD', snapshots, seconds(ARGV[2]), ARGV[1])
end
local answer = {redis.call('HGET', state, 'revision') or '0'}
for _, name in ipairs(redis.call('ZRANGEBYLEX', names, ARGV[3], ARGV[4], 'LIMIT', 0, ARGV[5])) do
    answer[#answer + 1] = name
    answer[#answer + 1] = redis.call('HGET', objects, name)
end
return answer
"""
)

# ARGV: the snapshot.  What was kept for it alone is forgotten.
END_SNAPSHOT = make_script(
    """
local snapshots, undo = unpack(KEYS)
redis.call('ZREM', snapshots, ARGV[1])
local oldest
for _, member in ipairs(redis.call('ZRANGE', snapshots, 0, -1)) do
    local revision = tonumber(string.match(member, '^%d+'))
    if not oldest or revision < oldest then oldest = revision end
end
if oldest then
    redis.call('XTRIM', undo, 'MINID', '=', string.format('%.0f', oldest + 1))
else
    redis.call('DEL', undo)
end
return 1
"""
)
