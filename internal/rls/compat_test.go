package rls

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tallygate/tallygate/internal/config"
)

// compat loads the configuration that an environment of envoyproxy/ratelimit amounts to.
func compat(t *testing.T, variables map[string]string) (*config.Config, []string) {
	t.Helper()
	env, notes, err := CompatEnv(func(name string) string { return variables[name] })
	if err != nil {
		t.Fatal(err)
	}
	c, err := config.Load("", env)
	if err != nil {
		t.Fatal(err)
	}
	return c, notes
}

func TestAnEnvironmentOfEnvoyRatelimitIsAConfiguration(t *testing.T) {
	c, notes := compat(t, map[string]string{
		"RUNTIME_ROOT": "/data", "RUNTIME_SUBDIRECTORY": "ratelimit", "REDIS_SOCKET_TYPE": "tcp", "REDIS_TYPE": "SINGLE", "REDIS_URL": "redis:6379",
		"REDIS_AUTH": "user:word:with:colons", "GRPC_PORT": "9001", "PORT": "9000", "LOG_LEVEL": "WARNING", "LOG_FORMAT": "json",
		"LIMIT_RESPONSE_HEADERS_ENABLED": "true", "LIMIT_LIMIT_HEADER": "X-RateLimit-Limit", "SHADOW_MODE": "true", "GRPC_MAX_CONNECTION_AGE": "30m",
		"NEAR_LIMIT_RATIO": "0.9", "USE_STATSD": "true", "LOCAL_CACHE_SIZE_IN_BYTES": "1000000", "CACHE_KEY_PREFIX": "edge:", "TALLYGATE_REDIS_POOL_SIZE": "3",
	})
	r := c.RLS
	if r.ConfigDir != "/data/ratelimit/config" || r.Listen != "0.0.0.0:9001" || c.Enforcer.Listen != "0.0.0.0:9000" || c.Enforcer.DebugListen != "127.0.0.1:6070" ||
		!r.ResponseHeaders || r.LimitHeader != "X-RateLimit-Limit" || r.ResetHeader != "RateLimit-Reset" || !r.ShadowMode || r.MaxConnectionAge != 30*time.Minute || r.NearLimitRatio != 0.9 {
		t.Errorf("got %+v, %+v", r, c.Enforcer)
	}
	if string(c.Redis.URL) != "redis://redis:6379" || c.Redis.Username != "user" || string(c.Redis.Password) != "word:with:colons" || c.Redis.PoolSize != 3 || c.Namespace != "edge" {
		t.Errorf("got %+v", c.Redis)
	}
	if c.Log.Level != "warn" || c.Log.Format != "json" || len(notes) != 2 {
		t.Errorf("%+v, notes %q", c.Log, notes)
	}
}

func TestTheKindsOfRedisAreFollowed(t *testing.T) {
	for name, c := range map[string]struct {
		variables map[string]string
		want      string
	}{
		"default":  {nil, "unix:///var/run/nutcracker/ratelimit.sock"},
		"URL":      {map[string]string{"REDIS_URL": "redis://a:1"}, "redis://a:1"},
		"TLS":      {map[string]string{"REDIS_URL": "a:1", "REDIS_SOCKET_TYPE": "tcp", "REDIS_TLS": "true"}, "rediss://a:1"},
		"cluster":  {map[string]string{"REDIS_URL": "a:1,b:2,c:3", "REDIS_TYPE": "CLUSTER"}, "redis://a:1 cluster b:2 c:3"},
		"sentinel": {map[string]string{"REDIS_URL": "main,a:1,b:2", "REDIS_TYPE": "sentinel"}, "redis://main main a:1 b:2"},
	} {
		got, _ := compat(t, c.variables)
		text := []string{string(got.Redis.URL)}
		if got.Redis.Cluster {
			text = append(text, "cluster")
		}
		if got.Redis.SentinelMaster != "" {
			text = append(text, got.Redis.SentinelMaster)
		}
		if s := strings.Join(append(text, got.Redis.Addresses...), " "); s != c.want {
			t.Errorf("%s: %s, want %s", name, s, c.want)
		}
	}
}

func TestWhatCannotBeFollowedIsRefusedTogether(t *testing.T) {
	refused := map[string]string{
		"CONFIG_TYPE": "GRPC_XDS_SOTW", "BACKEND_TYPE": "memcache", "REDIS_TYPE": "RING", "SHADOW_MODE": "perhaps",
		"GRPC_SERVER_USE_TLS": "true",
	}
	_, _, err := CompatEnv(func(name string) string { return refused[name] })
	if err == nil {
		t.Fatal("accepted")
	}
	for _, name := range slices.Sorted(maps.Keys(refused)) {
		if name = strings.Replace(name, "USE_TLS", "TLS_CERT", 1); !strings.Contains(err.Error(), name+":") {
			t.Errorf("no word about %s in %v", name, err)
		}
	}
}
