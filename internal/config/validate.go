package config

import (
	"fmt"
	"maps"
	"net"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tallygate/tallygate/internal/quota"
)

// MaxGrace bounds counters.grace: foreign counters live by the minute of the
// hour, so nothing about counters reaches further than an hour.
const MaxGrace = time.Hour

// MaxLimits is how many limits a policy may have.
const MaxLimits = 32

var (
	namespaceShape = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)
	sha256Shape    = regexp.MustCompile(`^[0-9a-f]{64}$`)
	nameShape      = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)
)

// report is told each problem: its key, what is wrong, what to do.
type report func(key, format string, args ...any)

func (c *Config) validate(wrong report) {
	if !namespaceShape.MatchString(c.Namespace) {
		wrong("namespace", "%q is not 1 to 64 characters of [A-Za-z0-9._-]", c.Namespace)
	}
	oneOf(wrong, "log.level", c.Log.Level, "debug", "info", "warn", "error")
	oneOf(wrong, "log.format", c.Log.Format, "text", "json")
	oneOf(wrong, "bus.kind", c.Bus.Kind, "redis", "kafka")
	if (c.Bus.Kind == "kafka") != (c.Bus.URL != "") {
		wrong("bus.url", "and bus.kind kafka go together; set both or neither")
	}
	c.Redis.validate(wrong)
	c.RLS.validate(wrong)
	c.ForwardAuth.validate(c.Policies, wrong)
	oneOf(wrong, "enforcer.older_headers", c.Enforcer.OlderHeaders, "none", "x-ratelimit", "ratelimit")
	between(wrong, "counters.grace", c.Counters.Grace, time.Minute, MaxGrace)
	between(wrong, "enforcer.decide_timeout", c.Enforcer.DecideTimeout, time.Millisecond, time.Minute)
	between(wrong, "tracker.flush_interval", c.Tracker.FlushInterval, time.Millisecond, time.Minute)
	between(wrong, "tracker.rescan_interval", c.Tracker.RescanInterval, time.Second, c.Counters.Grace)
	for key, server := range map[string]Server{"enforcer": c.Enforcer.Server, "tracker": c.Tracker.Server, "indexer": c.Indexer.Server} {
		address(wrong, key+".listen", server.Listen)
		if server.DebugListen != "" {
			address(wrong, key+".debug_listen", server.DebugListen)
		}
		between(wrong, key+".drain_timeout", server.DrainTimeout, time.Millisecond, 10*time.Minute)
	}
	between(wrong, "bus.claim_after", c.Bus.ClaimAfter, 100*time.Millisecond, time.Hour)
	if c.Bus.Stream == "" || strings.HasPrefix(c.Bus.Stream, "{"+c.Namespace+":") {
		wrong("bus.stream", "%q cannot be the stream's key: it is empty or looks like a token's key; use for example tallygate:usage", c.Bus.Stream)
	}
	if c.Bus.Group == "" {
		wrong("bus.group", "is empty; name the consumer group, for example indexer")
	}
	switch scheme, rest, _ := strings.Cut(string(c.History.URL), ":"); {
	case scheme == "sqlite" && rest != "", scheme == "postgres", scheme == "postgresql":
	default:
		wrong("history.url", "%q is neither postgres://user@host/database nor sqlite:PATH", c.History.URL)
	}
	if c.History.KeepMinutes != 0 {
		between(wrong, "history.keep_minutes", c.History.KeepMinutes, 24*time.Hour, 100*366*24*time.Hour)
	}
	c.Admin.validate(wrong)
	c.Indexer.Dashboard.validate(wrong)
	c.validatePolicies(wrong)
}

func (a *Admin) validate(wrong report) {
	address(wrong, "admin.listen", a.Listen)
	names := map[string]bool{}
	for i, c := range a.Credentials {
		at := fmt.Sprintf("admin.credentials[%d]", i)
		if c.Name == "" || len(c.Name) > 64 || names[c.Name] {
			wrong(at+".name", "%q is empty, longer than 64 bytes, or taken; each administrator needs a name for the audit", c.Name)
		}
		names[c.Name] = true
		if !sha256Shape.MatchString(c.SHA256) {
			wrong(at+".sha256", "is not the 64 hex digits of a SHA-256; make one with: tallygate credential")
		}
		oneOf(wrong, at+".role", c.Role, "read", "write")
		if _, err := time.Parse(time.RFC3339, c.Expires); c.Expires != "" && err != nil {
			wrong(at+".expires", "%q is not a time such as 2030-01-31T00:00:00Z", c.Expires)
		}
	}
}

func (r *Redis) validate(wrong report) {
	u, err := url.Parse(string(r.URL))
	if err != nil || !slices.Contains([]string{"redis", "rediss", "unix"}, u.Scheme) || (u.Host == "" && u.Path == "") {
		wrong("redis.url", "%q is not redis://host:port/db, rediss://host:port/db or unix:///path", r.URL)
	}
	for i, a := range r.Addresses {
		address(wrong, fmt.Sprintf("redis.addresses[%d]", i), a)
	}
	if r.Cluster && r.SentinelMaster != "" {
		wrong("redis.sentinel_master", "excludes redis.cluster; remove one of them")
	}
	if r.SentinelMaster != "" && len(r.Addresses) == 0 {
		wrong("redis.addresses", "is empty; list the Sentinels, host:port each")
	}
	if (r.TLS.CertFile == "") != (r.TLS.KeyFile == "") {
		wrong("redis.tls", "cert_file and key_file go together; set both or neither")
	}
	between(wrong, "redis.dial_timeout", r.DialTimeout, time.Millisecond, time.Minute)
	if r.PoolSize < 1 || r.PoolSize > 10_000 {
		wrong("redis.pool_size", "%d is not between 1 and 10000", r.PoolSize)
	}
}

func (d *Dashboard) validate(wrong report) {
	if d.Open && len(d.Credentials) > 0 {
		wrong("indexer.dashboard.open", "excludes credentials; remove one of them")
	}
	taken := map[string]bool{}
	for i, c := range d.Credentials {
		key := fmt.Sprintf("indexer.dashboard.credentials[%d]", i)
		if !nameShape.MatchString(c.Name) {
			wrong(key+".name", "%q is not 1 to 64 characters of [a-z0-9-]", c.Name)
		}
		if taken[c.Name] {
			wrong(key+".name", "%q is taken by another credential; rename one", c.Name)
		}
		taken[c.Name] = true
		oneOf(wrong, key+".role", c.Role, "view", "admin")
		if !sha256Shape.MatchString(c.SHA256) { // not quoted: it may be the secret itself
			wrong(key+".sha256", "is not the 64 hex digits of a SHA-256; print them with: tr -d '\\n' <token | sha256sum")
		}
	}
}

func (c *Config) validatePolicies(wrong report) {
	names := slices.Sorted(maps.Keys(c.Policies))
	if _, ok := c.Policies[c.DefaultPolicy]; !ok {
		wrong("default_policy", "there is no policy %q; name one of: %s", c.DefaultPolicy, strings.Join(names, ", "))
	}
	for _, name := range names {
		key, p := "policies."+name, c.Policies[name]
		if !nameShape.MatchString(name) {
			wrong(key, "%q is not 1 to 64 characters of [a-z0-9-]; rename the policy", name)
		}
		switch {
		case p.Unlimited && p.Blocked:
			wrong(key, "unlimited and blocked exclude each other; remove one")
		case (p.Unlimited || p.Blocked) && len(p.Limits) > 0:
			wrong(key, "an unlimited or blocked policy has no limits; remove them or the word")
		case !p.Unlimited && !p.Blocked && len(p.Limits) == 0:
			wrong(key, "has no limits; add some, or set unlimited: true or blocked: true")
		}
		if len(p.Limits) > MaxLimits {
			wrong(key+".limits", "has %d limits, at most %d are allowed; split the policy", len(p.Limits), MaxLimits)
		}
		taken := map[string]bool{}
		for i := range p.Limits {
			at := fmt.Sprintf("%s.limits[%d]", key, i)
			p.Limits[i].validate(at, wrong)
			if taken[p.Limits[i].Name] {
				wrong(at+".name", "%q is taken by another limit of the policy; rename one", p.Limits[i].Name)
			}
			taken[p.Limits[i].Name] = true
		}
	}
}

func (l *Limit) validate(key string, wrong report) {
	if l.Algorithm == "" {
		l.Algorithm = quota.FixedWindow.String()
	}
	_, err := l.Compile()
	for _, problem := range each(err) {
		// Problems begin with the field that they are about.
		field, _, _ := strings.Cut(problem.Error(), " ")
		if field = strings.Trim(field, ":"); !slices.Contains(limitKeys, field) {
			field = ""
		}
		wrong(strings.TrimSuffix(key+"."+field, "."), "%v", problem)
	}
	if l.Algorithm != quota.CalendarWindow.String() && l.Window > 0 && l.Window < time.Second {
		wrong(key+".window", "window %v is shorter than 1s, which no header can say", l.Window)
	}
}

// limitKeys are the keys of a limit.
var limitKeys = func() []string {
	var keys []string
	for _, f := range fieldsOf(reflect.ValueOf(Limit{})) {
		keys = append(keys, f.key)
	}
	return keys
}()

// each returns the errors that err joins.
func each(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	if err == nil {
		return nil
	}
	return []error{err}
}

func oneOf(wrong report, key, value string, allowed ...string) {
	if !slices.Contains(allowed, value) {
		wrong(key, "%q is not one of: %s", value, strings.Join(allowed, ", "))
	}
}

func between(wrong report, key string, value, least, most time.Duration) {
	if value < least || value > most {
		wrong(key, "%v is not between %v and %v", value, least, most)
	}
}

func address(wrong report, key, value string) {
	host, port, err := net.SplitHostPort(value)
	if n, e := strconv.Atoi(port); err != nil || e != nil || n < 0 || n > 65535 || strings.ContainsAny(host, " /") {
		wrong(key, "%q is not host:port, for example 127.0.0.1:8080", value)
	}
}
