-- What wrk sends: the bodies of a file, one a line, one after the other; and what it found, as JSON on the last line.
-- wrk -t1 -c32 -d5s -s serving_load.lua URL -- BODIES PATH
local bodies, at = {}, 0

function init(args)
  for line in assert(io.open(args[1])):lines() do
    bodies[#bodies + 1] = wrk.format("POST", args[2], {["content-type"] = "application/json"}, line)
  end
end

function request()
  at = at % #bodies + 1
  return bodies[at]
end

function done(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    '{"requests": %d, "seconds": %.6f, "failed": %d, "p50_ms": %.3f, "p90_ms": %.3f, "p99_ms": %.3f}\n',
    summary.requests, summary.duration / 1e6,
    errors.status + errors.connect + errors.read + errors.write + errors.timeout,
    latency:percentile(50) / 1e3, latency:percentile(90) / 1e3, latency:percentile(99) / 1e3))
end
