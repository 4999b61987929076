-- series_put(key, span, minute, admitted, rejected, refunded) writes one minute
-- into series of RedisTimeSeries. It takes the place of the ring's function of the
-- same name (series.lua).
--
--   key      series:{api:T}:<resource>; the series are beside it, in its slot:
--              <key>:admitted       units per minute, for span minutes
--              <key>:admitted:hour  units per hour, for 35 days
--              <key>:admitted:day   units per day, for 400 days
--            and likewise rejected and refunded, as soon as there are any
--   span     minutes
--   minute   epoch minute
--   admitted, rejected, refunded   units in that minute so far, absolute
--
-- Values are absolute and the larger one stays (ON_DUPLICATE MAX), so that writing
-- twice changes nothing; the module recomputes the hour and the day of a minute that
-- has grown. A minute older than the span is left out. A series of which nothing was
-- heard for 400 days expires as a whole. A key of another type is replaced: the
-- account must not fail for the series' sake.
local function series_put(key, span, minute, admitted, rejected, refunded)
  local day_ms, keep = 86400000, 400 * 86400
  local token, resource = string.match(key, '^series:{[^:]*:(.*)}:(.*)$')

  local function create(name, kind)
    redis.call('DEL', name, name .. ':hour', name .. ':day')
    local function make(suffix, step, retention_ms)
      local labels = { 'LABELS', 'token', token, 'kind', kind, 'step', step }
      if resource ~= '' then
        labels[#labels + 1] = 'resource'
        labels[#labels + 1] = resource
      end
      redis.call('TS.CREATE', name .. suffix, 'RETENTION', string.format('%.0f', retention_ms), 'CHUNK_SIZE', '256', unpack(labels))
    end
    make('', 'minute', (span - 1) * 60000)
    make(':hour', 'hour', 35 * day_ms)
    make(':day', 'day', 400 * day_ms)
    redis.call('TS.CREATERULE', name, name .. ':hour', 'AGGREGATION', 'sum', '3600000')
    redis.call('TS.CREATERULE', name, name .. ':day', 'AGGREGATION', 'sum', tostring(day_ms))
  end

  local function put(kind, units)
    if units == 0 then
      return
    end
    local name = key .. ':' .. kind
    local at, value = string.format('%.0f', minute * 60000), string.format('%.0f', units)
    local fresh = redis.call('EXISTS', name) == 0
    if fresh then
      create(name, kind)
    end
    local added = redis.pcall('TS.ADD', name, at, value, 'ON_DUPLICATE', 'MAX')
    if type(added) == 'table' and added.err then
      if string.find(added.err, 'retention', 1, true) then
        return
      end
      create(name, kind)
      redis.call('TS.ADD', name, at, value, 'ON_DUPLICATE', 'MAX')
    end
    for _, k in ipairs({ name, name .. ':hour', name .. ':day' }) do
      redis.call('EXPIRE', k, tostring(keep))
    end
  end

  put('admitted', admitted)
  put('rejected', rejected)
  put('refunded', refunded)
end
