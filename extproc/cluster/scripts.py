"""The scripts that run in the store, and the keys of a cluster. For Valkey, and Redis from 6.2 on.

The store's clock is the only one: a replica says how long its record counts, and the script when it was written. A
record from the future means that the clock has gone back, with a fail-over to another machine: its age is not known, so
it begins anew.

Keys, all of one cluster in one slot (`{fairlane:NAME}`), 1 being the version of this format:

- `...:1:replicas`, a hash: REPLICA -> record, `REPLICA:document`, and `:messages` -> epoch, number and bytes of these
- `...:1:messages`, a list: the newest first
- `...:1:leases`, a hash: name -> lease
- `...:1:configuration`, a hash: `number`, `token`, `document`. The only one without expiry
- `...:versions`, a hash: version -> when it was spoken last. The same for all versions, for ever

Records are text in front (`HGETALL` with redis-cli shows it), so that what is not one is seen as such.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha1
from typing import Final

VERSION: Final = "1"
MOST_MESSAGES: Final = 8192  # that wait to be read
MOST_MESSAGE_BYTES: Final = 8 * 1024**2  # of them together
LONGEST_LEASE_MS: Final = 60_000  # what cluster.lease may be; a longer one is nobody's of ours

# What an account of the store must be allowed, on keys that begin with {fairlane:NAME}: ; in ACL's own words.
COMMANDS: Final = (
    "evalsha",
    "script|load",
    "time",
    "hget",
    "hmget",
    "hgetall",
    "hset",
    "hdel",
    "lindex",
    "llen",
    "lpush",
    "lrange",
    "rpop",
    "del",
    "pexpire",
)
SENTINEL_COMMANDS: Final = ("sentinel|get-master-addr-by-name",)


@dataclass(frozen=True, slots=True)
class Keys:
    replicas: str
    messages: str
    leases: str
    configuration: str
    versions: str

    @staticmethod
    def of(cluster: str, version: str = VERSION) -> Keys:
        prefix = f"{{fairlane:{cluster}}}:"
        ours = f"{prefix}{version}:"
        return Keys(
            replicas=f"{ours}replicas",
            messages=f"{ours}messages",
            leases=f"{ours}leases",
            configuration=f"{ours}configuration",
            versions=f"{prefix}versions",
        )


@dataclass(frozen=True, slots=True)
class Script:
    name: str
    text: str
    sha: str

    @staticmethod
    def of(name: str, body: str) -> Script:
        text = f"{_BEFORE}\nlocal function main()\n{body}\nend\n{_AFTER}"
        return Script(name, text, sha1(text.encode(), usedforsecurity=False).hexdigest())


# An error of a command names the key: nobody could tell which of them is somebody else's.
_BEFORE = (
    f"local longest_lease = {LONGEST_LEASE_MS}\n"
    + """
local function call(command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) == 'table' and reply.err then
    error({text = reply.err .. ' (' .. command .. ' ' .. key .. ')'})
  end
  return reply
end

local function clock()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local function whole(number)
  return string.format('%.0f', number)
end

-- What is written may be anybody's: nil for what is no whole number, or more than a number holds exactly.
local function small(text)
  if text and #text <= 15 and string.match(text, '^%d+$') then return tonumber(text) end
  return nil
end

local function lease_of(text)
  local lease = small(text)
  if lease and lease <= longest_lease then return lease end
  return nil
end

local function expire(key, lease)
  call('PEXPIRE', key, whole(math.max(60000, 4 * lease)))
end
"""
)

_AFTER = """
local good, reply = pcall(main)
if good then return reply end
return redis.error_reply(type(reply) == 'table' and reply.text or 'SCRIPT ' .. tostring(reply))
"""

# A record: life, seq, the seq at which the store did not know this life, time and lease in ms; claims as JSON. The
# document has a field of its own, since it is large and only passes through.
#
# A message: time in ms, replica, life; body.
#
# Everything is read before anything is written: what fails has changed nothing.
#
# The same seq again is an exchange whose answer was lost: it says what the first one said. A smaller one has been on
# its way for longer than the replica has waited for it.
EXCHANGE: Final = Script.of(
    "exchange",
    r"""
local replicas, messages, configuration, versions = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local replica, life, seq, lease = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local document, message, asks = ARGV[5], ARGV[6], cjson.decode(ARGV[7])
local epoch_read, number_read = ARGV[8], tonumber(ARGV[9])
local version, most_messages, most_bytes = ARGV[10], tonumber(ARGV[11]), tonumber(ARGV[12])
local now = clock()

local state, repeated, born = nil, false, seq
local live, documents, peers, dropped, gone, again, taken, longest = {}, {}, {}, {}, {}, {}, {}, lease
local all = call('HGETALL', replicas)
for i = 1, #all, 2 do
  local name, record = all[i], all[i + 1]
  local whose = string.match(name, '^(.+):document$')
  local its_life, its_seq, its_born, at, its_lease, start = string.match(record, '^(%S+) (%d+) (%d+) (%d+) (%d+)\n()')
  at, its_lease = small(at), lease_of(its_lease)
  if whose then
    documents[whose] = record
  elseif name == ':messages' then
    state = record
  elseif not (its_life and small(its_seq) and small(its_born) and at and its_lease) then
    dropped[#dropped + 1] = string.sub(name, 1, 64)
    gone[#gone + 1] = name
  else
    if at > now then
      at = now
      again[#again + 1] = name
      again[#again + 1] = table.concat({its_life, its_seq, its_born, whole(now), whole(its_lease)}, ' ')
        .. '\n' .. string.sub(record, start)
    end
    local remaining = at + its_lease - now
    if remaining < 0 then
      gone[#gone + 1] = name
    elseif name == replica then
      if its_life ~= life then return {whole(now), 'in_use', its_life, whole(remaining)} end
      if seq < tonumber(its_seq) then return {whole(now), 'late'} end
      repeated, born = seq == tonumber(its_seq), tonumber(its_born)
    else
      longest = math.max(longest, its_lease)
      live[name] = true
      peers[#peers + 1] = name
      peers[#peers + 1] = its_life
      peers[#peers + 1] = whole(now - at)
      local good, claims = pcall(cjson.decode, string.sub(record, start))
      if good and type(claims) == 'table' then
        for key, slots in pairs(claims) do
          if type(slots) == 'number' and slots > 0 then taken[key] = (taken[key] or 0) + slots end
        end
      end
    end
  end
end
local told_by = {}
for i = 1, #peers, 3 do told_by[#told_by + 1] = documents[peers[i]] or '' end
for name in pairs(documents) do
  if not live[name] and name ~= replica then gone[#gone + 1] = name .. ':document' end
end

local epoch, number, bytes = string.match(state or '', '^(%S+) (%d+) (%d+)$')
local count = call('LLEN', messages)
number, bytes = small(number), small(bytes)
if not (number and bytes) then epoch = nil end
local forget = not epoch and count > 0
if not epoch then
  epoch, number, bytes, count = life .. '-' .. whole(now), 0, 0, 0
end
if count == 0 then bytes = 0 end
local from = 0
if epoch_read == epoch then from = math.min(number_read, number) end
local missed = from < number - count
local unread = math.min(number - from, count)
local told = {}
if unread > 0 then
  local list = call('LRANGE', messages, 0, unread - 1)
  for i = #list, 1, -1 do
    local name, its_life, start = string.match(list[i], '^%d+ (%S+) (%S+)\n()')
    if name and name ~= replica then
      told[#told + 1] = name
      told[#told + 1] = its_life
      told[#told + 1] = string.sub(list[i], start)
    end
  end
end
local revision = call('HGET', configuration, 'number') or '0'
if not small(revision) then
  revision = '0'
  dropped[#dropped + 1] = 'configuration:number'
end
local spoken = call('HGETALL', versions)

local granted, claims = {}, {}
for i, ask in ipairs(asks) do
  local slots = math.max(ask[2], math.min(ask[3], ask[4] - (taken[ask[1]] or 0)))
  granted[i] = slots
  if slots > 0 then claims[ask[1]] = slots end
end

if forget then call('DEL', messages) end
if message ~= '' and not repeated then
  local entry = whole(now) .. ' ' .. replica .. ' ' .. life .. '\n' .. message
  call('LPUSH', messages, entry)
  number, count, bytes = number + 1, count + 1, bytes + #entry
end
while count > 0 do
  local oldest = call('LINDEX', messages, -1) or ''
  local at = tonumber(string.match(oldest, '^(%d+) '))
  if at and at + longest >= now and bytes <= most_bytes and count <= most_messages then break end
  call('RPOP', messages)
  count, bytes = count - 1, math.max(0, bytes - #oldest)
end
for i = 1, #gone do call('HDEL', replicas, gone[i]) end
for i = 1, #again, 2 do
  if again[i] ~= replica then call('HSET', replicas, again[i], again[i + 1]) end
end
local head = table.concat({life, ARGV[3], whole(born), whole(now), whole(lease)}, ' ')
call('HSET', replicas, replica, head .. '\n' .. cjson.encode(claims), replica .. ':document', document,
  ':messages', epoch .. ' ' .. whole(number) .. ' ' .. whole(bytes))
expire(replicas, longest)
if count > 0 then expire(messages, longest) end
local others = {}
for i = 1, #spoken, 2 do
  local at, its_lease = string.match(spoken[i + 1], '^(%d+) (%d+)$')
  if spoken[i] ~= version then
    at, its_lease = small(at), lease_of(its_lease)
    if at and its_lease and at <= now and now - at <= its_lease then
      others[#others + 1] = string.sub(spoken[i], 1, 64)
    else
      call('HDEL', versions, spoken[i])
    end
  end
end
call('HSET', versions, version, whole(now) .. ' ' .. whole(lease))
expire(versions, longest)

return {whole(now), whole(born), #granted > 0 and cjson.encode(granted) or '[]', epoch,
  whole(number), missed and '1' or '0', revision, others, dropped, peers, told_by, told}
""",
)

LEAVE: Final = Script.of(
    "leave",
    r"""
local life = string.match(call('HGET', KEYS[1], ARGV[1]) or '', '^(%S+) ')
if life == ARGV[2] then return call('HDEL', KEYS[1], ARGV[1], ARGV[1] .. ':document') end
return 0
""",
)

# A lease: time and lease in ms, since when it is held; holder.
ACQUIRE: Final = Script.of(
    "acquire",
    r"""
local name, holder, lease = ARGV[1], ARGV[2], tonumber(ARGV[3])
local now = clock()
local at, its_lease, since, who = string.match(call('HGET', KEYS[1], name) or '', '^(%d+) (%d+) (%d+) (.+)$')
at, its_lease, since = small(at), lease_of(its_lease), small(since)
if at and its_lease and since then
  local remaining = at + its_lease - now
  if remaining >= 0 and who ~= holder then
    if at > now then
      call('HSET', KEYS[1], name, table.concat({whole(now), whole(its_lease), whole(since), who}, ' '))
      remaining = its_lease
    end
    return {who, whole(remaining), whole(since)}
  end
  if remaining < 0 then since = nil end
else
  since = nil
end
since = since and whole(since) or whole(now)
call('HSET', KEYS[1], name, table.concat({whole(now), whole(lease), since, holder}, ' '))
expire(KEYS[1], lease)
return {holder, whole(lease), since}
""",
)

RELEASE: Final = Script.of(
    "release",
    r"""
local who = string.match(call('HGET', KEYS[1], ARGV[1]) or '', '^%d+ %d+ %d+ (.+)$')
if who == ARGV[2] then return call('HDEL', KEYS[1], ARGV[1]) end
return 0
""",
)

# The token is of one attempt: the same one again means that its answer was lost. A number that is none counts as 0, so
# that the next change takes its place.
CONFIGURE: Final = Script.of(
    "configure",
    r"""
local found = call('HMGET', KEYS[1], 'number', 'token')
local number = small(found[1] or '0') or 0
if found[2] and found[2] == ARGV[2] then return {1, whole(number)} end
if number ~= tonumber(ARGV[1]) then return {0, whole(number)} end
call('HSET', KEYS[1], 'number', whole(number + 1), 'token', ARGV[2], 'document', ARGV[3])
return {1, whole(number + 1)}
""",
)
