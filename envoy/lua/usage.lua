-- Usage of streamed answers, for Envoys without sse_to_metadata (1.36, 1.37): token counts and errors out of the SSE
-- events, as they pass, into dynamic metadata fairlane.usage, from where the access log takes them.
--
-- Each chunk goes on as soon as it has been looked at; nothing is held back. An event's line may be cut anywhere, so
-- the pieces of an unfinished line are kept and a line is read once it is whole: no number is ever read short. Only
-- members at the paths below count, so neither the model's text nor a request that is echoed in the answer can fake
-- them. Later events overwrite earlier ones. Read are single `data:` lines, as all engines write them; a JSON text that
-- is spread over several is not put together, and an unfinished line at the end is dropped, as the SSE standard says.
--
-- Nothing that came from the handle may be kept over a chunk ("object used outside of proper scope").

local LONGEST_LINE = 1048576 -- bytes; a longer one is skipped

-- A line without one of these has nothing for us; most lines are dismissed here.
local SIGNS = { 'usage"', '"error"', '"generated_tokens"' }

local WANTED = {
  -- completions and chat
  ["usage.prompt_tokens"] = "prompt_tokens",
  ["usage.completion_tokens"] = "completion_tokens",
  ["usage.prompt_tokens_details.cached_tokens"] = "cached_tokens",
  -- responses: in the event response.completed
  ["response.usage.input_tokens"] = "prompt_tokens",
  ["response.usage.output_tokens"] = "completion_tokens",
  ["response.usage.input_tokens_details.cached_tokens"] = "cached_tokens",
  -- messages: message_start has the prompt, message_delta both
  ["message.usage.input_tokens"] = "prompt_tokens",
  ["usage.input_tokens"] = "prompt_tokens",
  ["usage.output_tokens"] = "completion_tokens",
  ["message.usage.cache_read_input_tokens"] = "cache_read_tokens",
  ["message.usage.cache_creation_input_tokens"] = "cache_creation_tokens",
  ["usage.cache_read_input_tokens"] = "cache_read_tokens",
  ["usage.cache_creation_input_tokens"] = "cache_creation_tokens",
  -- TGI
  ["details.input_length"] = "prompt_tokens",
  ["details.generated_tokens"] = "completion_tokens",
  -- An engine that sheds load in the middle of a stream answers 200 and says so in an event.
  ["error.code"] = "error_code",
  ["error.type"] = "error_type",
  ["error_type"] = "error_type", -- TGI
  ["response.error.code"] = "error_code",
  ["code"] = "error_code", -- responses: an event of type "error"
}

-- The objects on the way there.
local ENTERED = {}
for path in pairs(WANTED) do
  for dot in path:gmatch("()%.") do
    ENTERED[path:sub(1, dot - 1)] = true
  end
end

local QUOTE, BACKSLASH, COMMA, OPEN, CLOSE, LIST, LIST_END = 34, 92, 44, 123, 125, 91, 93

-- Of the string whose opening quote is at `at`: where its closing quote is; nil: it is cut.
local function string_end(s, at)
  while true do
    at = s:find('"', at + 1, true)
    if not at then
      return nil
    end
    local escapes = at
    while s:byte(escapes - 1) == BACKSLASH do
      escapes = escapes - 1
    end
    if (at - escapes) % 2 == 0 then
      return at
    end
  end
end

-- Of the value that begins at `at`: where the comma or bracket behind it is; nil: it is cut.
local function value_end(s, at)
  local depth = 0
  while true do
    local code = s:byte(at)
    if code == QUOTE then
      at = string_end(s, at)
      if not at then
        return nil
      end
    elseif code == OPEN or code == LIST then
      depth = depth + 1
    elseif code == CLOSE or code == LIST_END then
      if depth == 0 then
        return at
      end
      depth = depth - 1
    elseif (code == COMMA and depth == 0) or not code then
      return code and at
    end
    at = at + 1
  end
end

local function keep(handle, name, text)
  local value = text:find("^-?%d") and tonumber(text)
  if name:find("_tokens", 1, true) then
    if not value or value < 0 then
      return
    end
  elseif not value then
    value = text:match('^"(.*)"') -- error codes are numbers or strings; null and the like say nothing
  end
  if value then
    handle:streamInfo():dynamicMetadata():set("fairlane.usage", name, value)
  end
end

-- The object whose brace is at `at`, and the wanted ones in it.
local function read(handle, s, at, path)
  while true do
    local quote = s:match('^[{,]%s*()"', at)
    local key_end = quote and string_end(s, quote)
    local value = key_end and s:match("^%s*:%s*()", key_end + 1)
    local stop = value and value_end(s, value)
    if not stop then
      return
    end
    local name = path .. s:sub(quote + 1, key_end - 1)
    if s:byte(value) == OPEN then
      if ENTERED[name] then
        read(handle, s, value, name .. ".")
      end
    elseif WANTED[name] then
      keep(handle, WANTED[name], s:sub(value, stop - 1))
    end
    at = stop
  end
end

local function read_line(handle, line)
  for _, sign in ipairs(SIGNS) do
    if line:find(sign, 1, true) then
      for text in line:gmatch("[^\r]+") do
        local brace = text:match("^data:%s*(){")
        if brace then
          read(handle, text, brace, "")
        end
      end
      return
    end
  end
end

function envoy_on_response(handle)
  local headers = handle:headers()
  local media_type = (headers:get("content-type") or ""):lower():match("^[^;%s]*")
  local encoding = (headers:get("content-encoding") or ""):lower()
  if media_type ~= "text/event-stream" or (encoding ~= "" and encoding ~= "identity") then
    return
  end
  local pieces, count, length = {}, 0, 0 -- of the unfinished line
  for chunk in handle:bodyChunks() do
    local bytes, from = chunk:getBytes(0, chunk:length()), 1
    while from <= #bytes do
      -- A line ends with LF, CR LF or CR alone. Looking for LF first is cheap; read_line() parts the rest.
      local stop = bytes:find("\n", from, true) or bytes:find("\r", from, true)
      length = length + (stop or #bytes + 1) - from
      if length <= LONGEST_LINE then
        count = count + 1
        pieces[count] = bytes:sub(from, (stop or 0) - 1)
      end
      if stop then
        if length <= LONGEST_LINE then
          read_line(handle, count == 1 and pieces[1] or table.concat(pieces, "", 1, count))
        end
        count, length = 0, 0
      end
      from = (stop or #bytes) + 1
    end
  end
end
