package config

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func env(pairs ...string) func(string) string {
	return func(name string) string {
		if i := slices.Index(pairs, name); i >= 0 && i%2 == 0 {
			return pairs[i+1]
		}
		return ""
	}
}

func write(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tallygate.yaml")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestTheExampleFileShowsTheDefaults(t *testing.T) {
	c, err := Load("../../tallygate.example.yaml", env())
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Policies) < 3 || c.DefaultPolicy != "free" {
		t.Errorf("the example has %d policies, default %q", len(c.Policies), c.DefaultPolicy)
	}
	want := Default()
	c.Policies, c.DefaultPolicy = want.Policies, want.DefaultPolicy
	c.path, c.source, c.getenv = "", nil, nil
	if !reflect.DeepEqual(c, want) {
		t.Errorf("the example differs from the defaults:\n%+v\n%+v", c, want)
	}
}

func TestAnEmptyFileIsAWorkingConfiguration(t *testing.T) {
	for _, content := range []string{"", "# nothing\n", "redis:\n"} {
		c, err := Load(write(t, content), env())
		if err != nil {
			t.Fatalf("%q: %v", content, err)
		}
		if c.Policies[c.DefaultPolicy].Limits[0].Quota != 60 {
			t.Errorf("%q: default policy is %+v", content, c.Policies)
		}
	}
}

func TestAllProblemsOfAFileAreReportedTogetherWithLineKeyAndRemedy(t *testing.T) {
	_, err := Load(write(t, `
namespace: "a b"
redis:
  ulr: redis://x
  pool_size: many
counters: {grace: 5}
enforcer:
  listen: 8080
policies:
  free:
    limits:
      - {name: minute, quota: 0, window: 1m}
      - {name: minute, quota: 5, window: eternity}
      - {name: "Per Day", quota: 5, window: 1d, algorithm: leaky}
  odd: {unlimited: true, blocked: true}
  empty: {}
default_policy: fre
`), env("TALLYGATE_ENFORCER_DECIDE_TIMEOUT", "soon"))
	var problems Problems
	if !errors.As(err, &problems) {
		t.Fatalf("got %v", err)
	}
	want := []string{
		`line 2: namespace: "a b" is not`,
		`line 4: redis.ulr: unknown key; did you mean url?`,
		`line 5: redis.pool_size: "many" is not a whole number`,
		`line 6: counters.grace: "5" is not a duration`,
		`line 8: enforcer.listen: "8080" is not host:port`,
		`line 12: policies.free.limits[0].quota: quota 0 must be 1 to`,
		`line 13: policies.free.limits[1].window: "eternity" is not a duration`,
		`line 13: policies.free.limits[1].name: "minute" is taken`,
		`line 14: policies.free.limits[2].name: name "Per Day" must be`,
		`line 14: policies.free.limits[2].algorithm: algorithm "leaky" is not one of: fixed_window`,
		`line 15: policies.odd: unlimited and blocked exclude each other`,
		`line 16: policies.empty: has no limits`,
		`line 17: default_policy: there is no policy "fre"; name one of: empty, free, odd`,
		`TALLYGATE_ENFORCER_DECIDE_TIMEOUT: "soon" is not a duration`,
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("missing: %s", w)
		}
	}
	if len(problems) != len(want) {
		t.Errorf("%d problems, want %d:\n%v", len(problems), len(want), err)
	}
}

func TestMalformedDocumentsAreRefusedWithTheirLine(t *testing.T) {
	for content, want := range map[string]string{
		"redis:\n  url: [":            "not valid YAML",
		"redis: 5":                    "redis: must be a mapping",
		"- a\n- b":                    "must be a mapping",
		"redis:\n  addresses: x:1":    "line 2: redis.addresses: must be a list",
		"redis:\n  url: {a: b}":       "redis.url: must be a single value",
		"namespace: a\n---\nlog: {}":  "second YAML document",
		"namespace: a\nnamespace: b":  "namespace",
		"namespace: *missing":         "namespace",
		"policies: {<<: {a: {}}}":     "merge keys",
		"redis: {password_file: /no}": "no such file",
	} {
		_, err := Load(write(t, content), env())
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", content, err, want)
		}
	}
}

func TestAMissingFileIsRefused(t *testing.T) {
	if _, err := Load(filepath.Join(t.TempDir(), "none.yaml"), env()); err == nil || !strings.Contains(err.Error(), "--config") {
		t.Errorf("got %v", err)
	}
}

func TestTheEnvironmentOverridesTheFile(t *testing.T) {
	secret := write(t, "from a file\n")
	c, err := Load(write(t, "redis: {url: 'redis://file:1', password: file}\ncounters: {grace: 5m}"), env(
		"TALLYGATE_REDIS_URL", "redis://env:2",
		"TALLYGATE_REDIS_ADDRESSES", "a:1, b:2",
		"TALLYGATE_REDIS_CLUSTER", "true",
		"TALLYGATE_REDIS_PASSWORD_FILE", secret,
		"TALLYGATE_ENFORCER_LISTEN", "0.0.0.0:80",
		"TALLYGATE_TRACKER_FLUSH_INTERVAL", "30s",
	))
	if err != nil {
		t.Fatal(err)
	}
	if string(c.Redis.URL) != "redis://env:2" || !slices.Equal(c.Redis.Addresses, []string{"a:1", "b:2"}) || !c.Redis.Cluster ||
		string(c.Redis.Password) != "from a file" || c.Enforcer.Listen != "0.0.0.0:80" ||
		c.Tracker.FlushInterval != 30*time.Second || c.Counters.Grace != 5*time.Minute {
		t.Errorf("got %+v", c)
	}
	if _, err := Load("", env("TALLYGATE_POLICIES", "x")); err == nil || !strings.Contains(err.Error(), "put policies into the file") {
		t.Errorf("policies from the environment: %v", err)
	}
}

func TestTheEffectiveConfigurationIsPrintedWithoutSecretsAndCanBeReadAgain(t *testing.T) {
	c, err := Load(write(t, `
redis: {url: "rediss://user:hunter2@r:6379/1?password=hunter2", password: hunter2}
history: {url: "postgres://u:hunter2@db/x?sslpassword=hunter2"}
policies: {default: {limits: [{name: d, quota: 5, window: 1d12h, resources: [a, "b c"]}]}}
`), env())
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := c.Print(&out); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(out.String(), "hunter2") {
		t.Errorf("a secret is printed:\n%s", out.String())
	}
	again, err := Load(write(t, out.String()), env())
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	if !reflect.DeepEqual(again.Policies, c.Policies) || again.Enforcer != c.Enforcer || again.Tracker != c.Tracker {
		t.Errorf("printed and read again it differs:\n%s", out.String())
	}
}

func TestDurationsKnowDaysAndWeeks(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"1d": 24 * time.Hour, "2w": 14 * 24 * time.Hour, "1w1d12h": 204 * time.Hour, "90s": 90 * time.Second, "1m": time.Minute,
	} {
		if got, err := parseDuration(text); err != nil || got != want {
			t.Errorf("%q: got %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "d", "5", "1d5", "99999999999999999999d", "106751d24h", "200000w", "106751d106751d"} {
		if got, err := parseDuration(text); err == nil {
			t.Errorf("%q: got %v, want an error", text, got)
		}
	}
}

func TestAnyDocumentIsReadWithoutPanic(t *testing.T) {
	words := []string{"redis", "url", "policies", "free", "limits", "quota", ":", " ", "\n", "  ", "- ", "[", "]", "{", "}", ",", "&a", "*a", "<<", "|", ">", "'", `"`, "1m", "5", "null", "~", "#", "---", "\t", "!!int", "?"}
	rapid.Check(t, func(t *rapid.T) {
		src := strings.Join(rapid.SliceOfN(rapid.SampledFrom(words), 0, 30).Draw(t, "words"), "")
		parse([]byte(src), env())
	})
}
