-- For wrk: post one body; print the outcome as a line of JSON.
-- There is no request(): wrk sends the bytes that it has made once, without a copy for each.
-- init's arguments: file of the body, and (to check every answer) file of its right beginning.

local threads = {}

local function content(path)
  local file = assert(io.open(path, "rb"))
  local text = file:read("*a")
  file:close()
  return text
end

function setup(thread)
  table.insert(threads, thread)
end

function init(args)
  wrong = 0
  wrk.method = "POST"
  wrk.body = content(args[1])
  if args[2] then
    local right = content(args[2])
    function response(status, headers, body)
      if status ~= 200 or body:sub(1, #right) ~= right then
        wrong = wrong + 1
      end
    end
  end
end

function done(summary, latency, requests)
  local errors = summary.errors
  local bad = errors.connect + errors.read + errors.write + errors.timeout + errors.status
  for _, thread in ipairs(threads) do
    bad = bad + thread:get("wrong")
  end
  io.write(string.format(
    '{"requests": %d, "seconds": %.6f, "wrong": %d, "p50_ms": %.4f, "p99_ms": %.4f}\n',
    summary.requests, summary.duration / 1e6, bad,
    latency:percentile(50) / 1e3, latency:percentile(99) / 1e3
  ))
end
