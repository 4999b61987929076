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
