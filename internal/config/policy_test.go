package config

import (
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestPatternsMatchAsTheirRegularExpressions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pattern := rapid.StringMatching(`[ab*]{0,6}`).Draw(t, "pattern")
		resource := rapid.StringMatching(`[ab]{0,8}`).Draw(t, "resource")
		want := regexp.MustCompile("^" + strings.ReplaceAll(pattern, "*", ".*") + "$").MatchString(resource)
		if got := MatchGlob(pattern, resource); got != want {
			t.Fatalf("%q, %q: got %v, want %v", pattern, resource, got, want)
		}
	})
}

func TestTheTextOfAPatternIsEncodedAroundItsAsterisks(t *testing.T) {
	got, err := parseResource("files:a b*.txt")
	if err != nil || got != "files%3Aa%20b*.txt" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestEveryAlgorithmCanBeConfigured(t *testing.T) {
	c, err := Load(write(t, `
default_policy: all
policies:
  all:
    limits:
      - {name: fixed, quota: 5, window: 36h, from_first: true}
      - {name: month, algorithm: calendar_window, quota: 5, calendar: {unit: month, zone: Europe/Vienna, day: 15}}
      - {name: week, algorithm: calendar_window, quota: 5, calendar: {unit: week, weekday: sunday}, shadow: true}
      - {name: year, algorithm: calendar_window, quota: 5, calendar: {unit: year, month: april}}
      - {name: sliding, algorithm: sliding_window, quota: 5, window: 1h, precision: 1m}
      - {name: log, algorithm: sliding_log, quota: 5, window: 1h, min_interval: 1s, count_rejected: true}
      - {name: bucket, algorithm: token_bucket, quota: 5, window: 1s, burst: 50}
      - {name: slots, algorithm: concurrency, quota: 5, window: 30s}
`), env())
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range c.Policies["all"].Limits {
		if _, err := l.Compile(); err != nil {
			t.Errorf("%s: %v", l.Name, err)
		}
	}
}

func TestLimitsThatMakeNoSenseNameTheirKey(t *testing.T) {
	for limit, want := range map[string]string{
		"algorithm: calendar_window, calendar: {unit: fortnight}":               "limits[0].calendar",
		"algorithm: calendar_window, calendar: {unit: day, zone: Middle/Earth}": "IANA",
		"algorithm: calendar_window, calendar: {unit: week, weekday: someday}":  "such as monday",
		"algorithm: calendar_window, calendar: {unit: year, month: brumaire}":   "such as january",
		"algorithm: sliding_window, window: 1h, precision: 7m":                  "limits[0].precision",
		"window: 1m, burst: 5": "limits[0].burst",
		"window: 100ms":        "shorter than 1s",
		"window: 1m, resources: [" + strings.Repeat("x", 200) + "]": "limits[0].resources",
	} {
		_, err := Load(write(t, "policies: {default: {limits: [{name: x, quota: 5, "+limit+"}]}}"), env())
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", limit, err, want)
		}
	}
}
