-- Body edit: appends members to the JSON object in the request's body, just before its last brace.
--
-- Place: after ext_proc. Reads dynamic metadata fairlane.body.append, for example "priority":1000001 - members without
-- braces and without a leading comma. Python's json, orjson and pydantic take the last of equal keys, so ours wins over
-- a client's own. Nothing is parsed and nothing else changes: key order, spacing, large integers, double keys and
-- escapes stay as sent. (A parse and a print would reorder keys and round integers.)
--
-- Where Fairlane has said nothing, having been away or not asked, UNSCHEDULED is appended, so that a client's own priority
-- does not count then either; without it the body is not even buffered. What cannot be edited passes unchanged, and the
-- access log says so: fairlane.usage.body_edit is "no_object" (the body does not begin with { and end with }), or
-- "compressed" (nor does it, and there is a content-encoding; the header alone says nothing, since engines do not look at
-- it). An error in here is logged by Envoy, and the request goes on unchanged.
--
-- setBytes() replaces the whole body and sets content-length; there is no cheaper way to change a buffer from Lua.

local UNSCHEDULED = '' -- as fairlane.body.append; set by what writes the configuration
local BRACE_OPEN, BRACE_CLOSE = 123, 125
local BLANK = " \t\r\n"
local BYTE_ORDER_MARK = "\239\187\191" -- Python's json.loads skips it
local NOT_UTF8 = '{"error": {"message": "the body must be UTF-8: its priority cannot be set otherwise", '
  .. '"type": "invalid_request_error", "param": null, "code": "invalid_request_error"}}'
local WINDOW = 4096 -- bytes looked at in one go; somebody may send megabytes of blanks

-- Code of the first byte that is not blank; nil: there is none.
local function first_solid(body)
  local length = body:length()
  local at = length >= 3 and body:getBytes(0, 3) == BYTE_ORDER_MARK and 3 or 0
  while at < length do
    local bytes = body:getBytes(at, math.min(WINDOW, length - at))
    local solid = bytes:find("[^" .. BLANK .. "]")
    if solid then
      return bytes:byte(solid)
    end
    at = at + #bytes
  end
end

-- Offset (from 0) and code of the last byte before `stop` that is not blank; nil: there is none.
local function last_solid(body, stop)
  while stop > 0 do
    local start = math.max(stop - WINDOW, 0)
    local bytes = body:getBytes(start, stop - start)
    local solid = bytes:match("^.*()[^" .. BLANK .. "]")
    if solid then
      return start + solid - 1, bytes:byte(solid)
    end
    stop = start
  end
end

-- UTF-16 or UTF-32: Python's json reads it, nothing can be appended to it here, and a client's own priority would count.
local function is_wide(body)
  local start = body:getBytes(0, math.min(2, body:length()))
  return start:find("\0", 1, true) ~= nil or start == "\255\254" or start == "\254\255"
end

local function pass_unchanged(handle, reason)
  handle:streamInfo():dynamicMetadata():set("fairlane.usage", "body_edit", reason)
end

function envoy_on_request(handle)
  local told = handle:streamInfo():dynamicMetadata():get("fairlane.body")
  local members = told and told.append or UNSCHEDULED
  if type(members) ~= "string" or members == "" then
    return
  end
  local body = handle:body() -- nil: the request has none
  if body and is_wide(body) then
    return handle:respond(
      { [":status"] = "400", ["content-type"] = "application/json", ["x-fairlane-reason"] = "invalid_request_error" },
      NOT_UTF8
    )
  end
  local brace, code
  if body and first_solid(body) == BRACE_OPEN then
    brace, code = last_solid(body, body:length())
  end
  if code ~= BRACE_CLOSE then
    local encoding = (handle:headers():get("content-encoding") or ""):lower()
    return pass_unchanged(handle, (encoding == "" or encoding == "identity") and "no_object" or "compressed")
  end
  local _, before = last_solid(body, brace)
  local comma = before == BRACE_OPEN and "" or "," -- only an empty object has { right before its }
  body:setBytes(body:getBytes(0, brace) .. comma .. members .. body:getBytes(brace, body:length() - brace))
end
