-- More facts about a request, for better estimates and for prefix affinity, without the body in Python. Optional.
--
-- Place: behind the facts filter (json_to_metadata, which has buffered the body anyway) and before ext_proc. Adds to
-- dynamic metadata fairlane.request, for JSON bodies that are an object:
--   text_bytes  bytes of the body without media: base64 in `data:` URIs, and in members `data` (images of /v1/messages,
--               audio of /v1/chat/completions)
--   images      how many: parts of such a type, or members `image_url`, whichever are more
--   prompts     of a list of prompts (strings, or lists of token ids; of rerank's documents, also objects), how many;
--               else 1
--   prefix      hashes of the first 512, 1024, 2048, ... 65536 bytes of the prompt as it stands in the body (the value
--               of messages, prompt, input or inputs), each going on from the one before; only full lengths:
--               "9d5fa1c0,07ce33d1,..."
--
-- One pass over the body, in which a string is one step however long it is, so 20 MB of images cost next to nothing but
-- their copy. Words inside a model's or a user's text cannot be taken for members: a quote inside a string is escaped.
-- A body that is no good JSON gives some numbers or none, never an error. Of equal names the costlier one counts. That
-- media is base64 is seen by samples: text behind the header of an image stays text.

local MOST_STEPS = 32 * 1024 * 1024 -- bytes outside of strings; behind that, all counts as text

local LISTS = { prompt = true, input = true, inputs = true, texts = true, documents = true }
local PROMPTS = { messages = true, prompt = true, input = true, inputs = true }
local IMAGES = { image = true, image_url = true, input_image = true }

local QUOTE, BACKSLASH, COMMA, COLON, OPEN, CLOSE, LIST, LIST_END = 34, 92, 44, 58, 123, 125, 91, 93
local LONGEST_NAME = 72 -- bytes of a member's name that is read; the longest that matters has 9 letters, as \u0070
local SHORTEST_BASE64 = 256 -- shorter values of `data` count as text
local SAMPLES, SAMPLE_BYTES = 8, 32

local byte, find, sub = string.byte, string.find, string.sub
local bxor, rol, tobit, tohex = bit.bxor, bit.rol, bit.tobit, bit.tohex

-- Of the string whose opening quote is at `at`: where its closing quote is; behind the end when it is cut.
local function string_end(s, at)
  while true do
    at = find(s, '"', at + 1, true)
    if not at then
      return #s + 1
    end
    local escapes = at
    while byte(s, escapes - 1) == BACKSLASH do
      escapes = escapes - 1
    end
    if (at - escapes) % 2 == 0 then
      return at
    end
  end
end

local function is_base64(s, from, to)
  local step = math.max(to - from + 1 - SAMPLE_BYTES, 0) / (SAMPLES - 1)
  for i = 0, SAMPLES - 1 do
    local start = from + math.floor(i * step)
    if find(sub(s, start, math.min(start + SAMPLE_BYTES - 1, to)), "[^%w+/=_\\-]") then
      return false
    end
  end
  return true
end

local function is_media(s, from, to, name)
  if byte(s, from) == 100 then -- d
    local _, header = find(sub(s, from, math.min(from + 255, to)), "^data:[^,%s]*;base64,")
    return header and is_base64(s, from + header, to)
  end
  return name == "data" and to - from >= SHORTEST_BASE64 and is_base64(s, from, to)
end

local function name_at(s, from, to)
  if to - from >= LONGEST_NAME then
    return ""
  end
  local name = sub(s, from, to)
  if find(name, "\\", 1, true) then
    name = name:gsub("\\u00(%x%x)", function(code)
      return string.char(tonumber(code, 16))
    end)
  end
  return name
end

-- text_bytes, images, prompts, and where the prompt begins and ends (nil: nowhere).
local function scan(s)
  local at, depth = 1, 0
  local from, to = 1, 0 -- of the last string
  local name = "" -- of the last member
  local is_value = false -- a colon stands before
  local list, listed = nil, 0 -- the member of LISTS that we are in, and its elements so far
  local media, types, urls, prompts, documents, is_chat = 0, 0, 0, 1, 1, false
  local first, last
  for _ = 1, MOST_STEPS do
    local code = byte(s, at)
    if code == QUOTE then
      local stop = string_end(s, at)
      from, to = at + 1, stop - 1
      if is_media(s, from, to, is_value and name) then
        media = media + to - from + 1
      elseif is_value and name == "type" and to - from < LONGEST_NAME and IMAGES[sub(s, from, to)] then
        types = types + 1
      end
      if list and depth == 2 then
        listed = listed + 1
      end
      is_value = false
      at = stop
    elseif code == COLON then
      name = name_at(s, from, to)
      is_value = true
      if name == "image_url" then
        urls = urls + 1
      elseif depth == 1 then
        is_chat = is_chat or name == "messages"
        if PROMPTS[name] and not first then
          first = find(s, "[^ \t\r\n]", at + 1)
        end
      end
    elseif code == OPEN or code == LIST then
      if depth == 1 then
        list, listed = code == LIST and LISTS[name] and name, 0
      elseif depth == 2 and list and (code == LIST or list == "documents") then
        listed = listed + 1
      end
      is_value = false
      depth = depth + 1
    elseif code == CLOSE or code == LIST_END or code == COMMA then
      if depth == 1 and first then
        last = last or at - 1
      end
      is_value = false
      if code ~= COMMA then
        depth = depth - 1
        if depth == 1 and list == "documents" then
          documents = math.max(documents, listed)
        elseif depth == 1 and list then
          prompts = math.max(prompts, listed)
        end
      end
    elseif not code then
      break
    end
    at = at + 1
  end
  -- The documents of a chat are context.
  return #s - media, math.max(types, urls), is_chat and prompts or math.max(prompts, documents), first, last
end

local function prefix(s, first, last)
  local hashes, hash, size, at = {}, 0, 512, first
  while size <= 65536 and first + size - 1 <= last do
    for i = at, first + size - 4, 4 do
      local a, b, c, d = byte(s, i, i + 3)
      -- The factor is odd, and below 2^19, so that the product is exact in a double.
      hash = rol(tobit(bxor(hash, a + b * 0x100 + c * 0x10000 + d * 0x1000000) * 0x6A73D), 13)
    end
    hashes[#hashes + 1] = tohex(hash)
    at, size = first + size, size * 2
  end
  return table.concat(hashes, ",")
end

function envoy_on_request(handle)
  local headers = handle:headers()
  local media_type = (headers:get("content-type") or ""):lower():match("^[^;%s]*")
  local encoding = (headers:get("content-encoding") or ""):lower()
  local is_json = media_type == "application/json" or media_type:find("^application/.+%+json$")
  if not is_json or (encoding ~= "" and encoding ~= "identity") then
    return
  end
  local body = handle:body()
  local text = body and body:getBytes(0, body:length()) or ""
  if not find(text, "^\239?\187?\191?[ \t\r\n]*{") then -- Envoy and Python skip a byte order mark
    return
  end
  local text_bytes, images, prompts, first, last = scan(text)
  local metadata = handle:streamInfo():dynamicMetadata()
  metadata:set("fairlane.request", "text_bytes", text_bytes)
  metadata:set("fairlane.request", "images", images)
  metadata:set("fairlane.request", "prompts", prompts)
  local hashes = last and prefix(text, first, last) or ""
  if hashes ~= "" then
    metadata:set("fairlane.request", "prefix", hashes)
  end
end
