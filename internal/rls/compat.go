package rls

import (
	"errors"
	"fmt"
	"net"
	"path"
	"regexp"
	"strconv"
	"strings"
)

// Compat is the name of the mode in which an enforcer takes envoyproxy/ratelimit's place.
const Compat = "envoy-ratelimit"

// CompatEnv translates the environment of envoyproxy/ratelimit to that of
// Tallygate, with the former's defaults: all interfaces, port 8080 for HTTP and
// 8081 for gRPC, rules below /srv/runtime_data/current. Variables of Tallygate
// that are set win. Notes are about variables that are set and have no effect;
// the error lists all that cannot be followed.
func CompatEnv(getenv func(string) string) (env func(name string) string, notes []string, err error) {
	t := &translation{getenv: getenv, to: map[string]string{}}
	t.addresses()
	t.logging()
	t.rules()
	t.redis()
	t.answers()
	t.ignored()
	env = func(name string) string {
		if own := getenv(name); own != "" {
			return own
		}
		return t.to[name]
	}
	return env, t.notes, errors.Join(t.errs...)
}

// translation is an environment on its way.
type translation struct {
	getenv func(string) string
	to     map[string]string
	notes  []string
	errs   []error
}

func (t *translation) or(name, byDefault string) string {
	if v := t.getenv(name); v != "" {
		return v
	}
	return byDefault
}

func (t *translation) is(name string) bool {
	text := t.or(name, "false")
	v, err := strconv.ParseBool(text)
	if err != nil {
		t.errs = append(t.errs, fmt.Errorf("%s: %q is neither true nor false", name, text))
	}
	return v
}

func (t *translation) set(name, value string) {
	if value != "" {
		t.to["TALLYGATE_"+name] = value
	}
}

func (t *translation) note(format string, args ...any) {
	t.notes = append(t.notes, fmt.Sprintf(format, args...))
}

func (t *translation) refuse(format string, args ...any) {
	t.errs = append(t.errs, fmt.Errorf(format, args...))
}

func (t *translation) addresses() {
	t.set("ENFORCER_LISTEN", net.JoinHostPort(t.or("HOST", "0.0.0.0"), t.or("PORT", "8080")))
	if t.is("USE_PROMETHEUS") {
		t.set("ENFORCER_DEBUG_LISTEN", t.or("PROMETHEUS_ADDR", ":9090"))
		t.note("metrics and /debug/pprof are both served at PROMETHEUS_ADDR, metrics at /metrics")
	} else {
		// Profiles are for those who asked for them: loopback unless told otherwise.
		t.set("ENFORCER_DEBUG_LISTEN", net.JoinHostPort(t.or("DEBUG_HOST", "127.0.0.1"), t.or("DEBUG_PORT", "6070")))
	}
	if socket := t.getenv("GRPC_UDS"); socket != "" {
		t.set("RLS_LISTEN", "unix:"+socket)
	} else {
		t.set("RLS_LISTEN", net.JoinHostPort(t.or("GRPC_HOST", "0.0.0.0"), t.or("GRPC_PORT", "8081")))
	}
	t.set("RLS_MAX_CONNECTION_AGE", t.getenv("GRPC_MAX_CONNECTION_AGE"))
	t.set("RLS_MAX_CONNECTION_AGE_GRACE", t.getenv("GRPC_MAX_CONNECTION_AGE_GRACE"))
	if t.is("GRPC_SERVER_USE_TLS") {
		t.set("RLS_TLS_CERT_FILE", t.getenv("GRPC_SERVER_TLS_CERT"))
		t.set("RLS_TLS_KEY_FILE", t.getenv("GRPC_SERVER_TLS_KEY"))
		t.set("RLS_TLS_CLIENT_CA_FILE", t.getenv("GRPC_CLIENT_TLS_CACERT"))
		t.set("RLS_TLS_CLIENT_NAME", t.getenv("GRPC_CLIENT_TLS_SAN"))
		if t.getenv("GRPC_SERVER_TLS_CERT") == "" {
			t.refuse("GRPC_SERVER_TLS_CERT: is empty, yet GRPC_SERVER_USE_TLS asks for TLS; name the certificate's file")
		}
	}
}

func (t *translation) logging() {
	level := strings.ToLower(t.or("LOG_LEVEL", "warn"))
	switch level {
	case "warning":
		level = "warn"
	case "trace":
		level = "debug"
	case "fatal", "panic":
		level = "error"
	}
	t.set("LOG_LEVEL", level)
	t.set("LOG_FORMAT", strings.ToLower(t.or("LOG_FORMAT", "text")))
}

func (t *translation) rules() {
	if kind := t.or("CONFIG_TYPE", "FILE"); kind != "FILE" {
		t.refuse("CONFIG_TYPE: %q is not supported; put the rules into files and set FILE", kind)
	}
	t.set("RLS_CONFIG_DIR", path.Join(t.or("RUNTIME_ROOT", "/srv/runtime_data/current"), t.getenv("RUNTIME_SUBDIRECTORY"), t.or("RUNTIME_APPDIRECTORY", "config")))
	for from, to := range map[string]string{
		"MERGE_DOMAIN_CONFIG": "RLS_MERGE_DOMAINS", "SHADOW_MODE": "RLS_SHADOW_MODE", "QUOTA_MODE": "RLS_QUOTA_MODE",
		"LIMIT_RESPONSE_HEADERS_ENABLED": "RLS_RESPONSE_HEADERS", "RESPONSE_DYNAMIC_METADATA": "RLS_DYNAMIC_METADATA",
	} {
		t.set(to, strconv.FormatBool(t.is(from)))
	}
}

func (t *translation) answers() {
	t.set("RLS_LIMIT_HEADER", t.getenv("LIMIT_LIMIT_HEADER"))
	t.set("RLS_REMAINING_HEADER", t.getenv("LIMIT_REMAINING_HEADER"))
	t.set("RLS_RESET_HEADER", t.getenv("LIMIT_RESET_HEADER"))
	t.set("RLS_NEAR_LIMIT_RATIO", t.getenv("NEAR_LIMIT_RATIO"))
}

var notNamespace = regexp.MustCompile(`[^A-Za-z0-9._-]+`)

func (t *translation) redis() {
	if kind := t.or("BACKEND_TYPE", "redis"); kind != "redis" {
		t.refuse("BACKEND_TYPE: %q is not supported; run a Redis or Valkey and set redis", kind)
	}
	if prefix := strings.Trim(notNamespace.ReplaceAllString(t.getenv("CACHE_KEY_PREFIX"), "-"), "-"); prefix != "" {
		t.set("NAMESPACE", prefix)
	}
	scheme := "redis"
	if t.is("REDIS_TLS") {
		scheme = "rediss"
		t.set("REDIS_TLS_CERT_FILE", t.getenv("REDIS_TLS_CLIENT_CERT"))
		t.set("REDIS_TLS_KEY_FILE", t.getenv("REDIS_TLS_CLIENT_KEY"))
		t.set("REDIS_TLS_CA_FILE", t.getenv("REDIS_TLS_CACERT"))
		if t.is("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION") {
			t.refuse("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION: a certificate is always verified; set TALLYGATE_REDIS_TLS_SERVER_NAME to the name that it bears")
		}
	}
	if auth := t.getenv("REDIS_AUTH"); auth != "" {
		user, password, both := strings.Cut(auth, ":")
		if !both {
			user, password = "", auth
		}
		t.set("REDIS_USERNAME", user)
		t.set("REDIS_PASSWORD", password)
	}
	t.set("REDIS_POOL_SIZE", t.getenv("REDIS_POOL_SIZE"))
	t.set("REDIS_DIAL_TIMEOUT", t.getenv("REDIS_TIMEOUT"))
	where := strings.Split(t.or("REDIS_URL", "/var/run/nutcracker/ratelimit.sock"), ",")
	switch kind := strings.ToUpper(t.or("REDIS_TYPE", "SINGLE")); kind {
	case "SINGLE":
		t.set("REDIS_URL", t.single(scheme, where[0]))
	case "CLUSTER":
		t.set("REDIS_CLUSTER", "true")
		t.set("REDIS_URL", scheme+"://"+where[0])
		t.set("REDIS_ADDRESSES", strings.Join(where[1:], ","))
	case "SENTINEL":
		t.set("REDIS_SENTINEL_MASTER", where[0])
		t.set("REDIS_URL", scheme+"://"+where[0])
		t.set("REDIS_ADDRESSES", strings.Join(where[1:], ","))
	default:
		t.refuse("REDIS_TYPE: %q is not one of: SINGLE, CLUSTER, SENTINEL", kind)
	}
}

// single returns the URL of one server, whose address may be one already.
func (t *translation) single(scheme, where string) string {
	if strings.HasPrefix(where, "redis://") || strings.HasPrefix(where, "rediss://") {
		return where
	}
	if strings.EqualFold(t.or("REDIS_SOCKET_TYPE", "unix"), "unix") {
		return "unix://" + where
	}
	return scheme + "://" + where
}

// noEffect are variables that ask for what is not there, or is not needed.
var noEffect = [][2]string{
	{"LOCAL_CACHE_SIZE_IN_BYTES", "exhausted limits are always remembered, in bounded memory"},
	{"EXPIRATION_JITTER_MAX_SECONDS", "keys end with their window"},
	{"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "a refused hit is never counted against a limit"},
	{"REDIS_PIPELINE_WINDOW", "calls are gathered without a timer"},
	{"REDIS_PIPELINE_LIMIT", "calls are gathered without a timer"},
	{"REDIS_PERSECOND", "limits per second are counted on the same Redis as all others"},
	{"REDIS_SENTINEL_AUTH", "Sentinels are asked with REDIS_AUTH"},
	{"USE_STATSD", "StatsD is not spoken; scrape /metrics at the debug address"},
	{"STATSD_HOST", "StatsD is not spoken; scrape /metrics at the debug address"},
	{"USE_DOG_STATSD", "StatsD is not spoken; scrape /metrics at the debug address"},
	{"PROMETHEUS_PATH", "metrics are at /metrics"},
	{"PROMETHEUS_MAPPER_YAML", "metrics have names of their own, see the documentation"},
	{"FORCE_START_WITHOUT_INITIAL_CONFIG", "a server without rules does not start"},
}

func (t *translation) ignored() {
	for _, v := range noEffect {
		switch t.getenv(v[0]) {
		case "", "false", "0":
		default:
			t.note("%s has no effect: %s", v[0], v[1])
		}
	}
}
