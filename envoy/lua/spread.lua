-- Which of several replicas of Fairlane a request goes to: its model, as a word that fits into a gRPC header.
--
-- The name is whatever a client wrote. A line break or another control character in a header would make Envoy refuse its
-- own call and try again for two minutes; a long name would be more than a gRPC server reads. So at most 64 characters,
-- and others than those of model names become an underscore: two odd names may share a replica, and that is all.
local LENGTH = 64

function envoy_on_request(handle)
  local metadata = handle:streamInfo():dynamicMetadata()
  local facts = metadata:get('fairlane.request')
  local model = facts and facts['model']
  if model == nil then
    return -- no JSON, or no model in it: any replica
  end
  local word = string.gsub(string.sub(tostring(model), 1, LENGTH), '[^%w._:/@+-]', '_')
  metadata:set('fairlane.spread', 'model', word)
end
