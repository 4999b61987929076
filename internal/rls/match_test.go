package rls

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	"pgregory.net/rapid"

	"github.com/tallygate/tallygate/internal/token"
)

// entries makes a descriptor's entries of key, value, key, value…
func entries(pairs ...string) []*common.RateLimitDescriptor_Entry {
	list := make([]*common.RateLimitDescriptor_Entry, 0, len(pairs)/2)
	for i := 0; i < len(pairs); i += 2 {
		list = append(list, &common.RateLimitDescriptor_Entry{Key: pairs[i], Value: pairs[i+1]})
	}
	return list
}

const limitOf = "rate_limit: {unit: minute, requests_per_unit: 1}"

func TestAMatchIsTheMostSpecificAtEachLevelAndIsNeverUndone(t *testing.T) {
	rules := load(t, "d", `
domain: d
descriptors:
  - {key: path, `+limitOf+`}
  - {key: path, value: /api/*/b*, `+limitOf+`}
  - {key: path, value: /api/*, `+limitOf+`}
  - {key: path, value: /api/exact, `+limitOf+`}
  - key: path
    value: /dead
    descriptors:
      - {key: user, value: u, `+limitOf+`}
  - key: path
    value: /both
    `+limitOf+`
    descriptors:
      - {key: user, `+limitOf+`}
  - {key: pre*, `+limitOf+`}
`)
	for _, c := range []struct {
		entries []string
		want    string // path below the domain, "" for none
	}{
		{[]string{"path", "/other"}, "path"},
		{[]string{"path", ""}, "path"},
		{[]string{"path", "/api/exact"}, "path_/api/exact"},
		{[]string{"path", "/api/x"}, "path_/api/*"},
		{[]string{"path", "/api/"}, "path_/api/*"},
		{[]string{"path", "/api/x/b"}, "path_/api/*/b*"},
		{[]string{"path", "/api/x/y/bcd"}, "path_/api/*/b*"},
		{[]string{"path", "/apix"}, "path"},
		{[]string{"path", "/dead"}, ""},                  // no limit there, and no way back to path alone
		{[]string{"path", "/dead", "user", "other"}, ""}, // nor here
		{[]string{"path", "/dead", "user", "u"}, "path_/dead.user_u"},
		{[]string{"path", "/both"}, "path_/both"},
		{[]string{"path", "/both", "user", "x"}, "path_/both.user"},
		{[]string{"path", "/other", "user", "x"}, ""}, // deeper than the rule
		{[]string{"prefix", "v"}, "pre*"},
		{[]string{"other", "v"}, ""},
		{nil, ""},
	} {
		rl, _, _ := rules.domains["d"].match(entries(c.entries...), nil, nil)
		got := ""
		if rl != nil {
			got = strings.TrimPrefix(rl.path, "d.")
		}
		if got != c.want {
			t.Errorf("%v: %q, want %q", c.entries, got, c.want)
		}
	}
}

func TestPatternsMatchAsTheirRegularExpressionDoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringOfN(rapid.SampledFrom([]rune("ab*")), 0, 8, -1)
		pattern := word.Draw(t, "pattern") + "*" + word.Draw(t, "rest")
		text := rapid.StringOfN(rapid.SampledFrom([]rune("ab")), 0, 12, -1).Draw(t, "text")
		quoted := strings.ReplaceAll(regexp.QuoteMeta(pattern), `\*`, ".*")
		want := regexp.MustCompile("^(?s:" + quoted + ")$").MatchString(text)
		if got := fits(strings.Split(pattern, "*"), []byte(text)); got != want {
			t.Fatalf("%q fits %q: %v, want %v", text, pattern, got, want)
		}
	})
}

func TestMatchingAllocatesNothing(t *testing.T) {
	rules := load(t, "d", "domain: d\ndescriptors:\n- key: a\n  descriptors: [{key: b, value: x*, "+limitOf+"}]")
	d, e := rules.domains["d"], entries("a", "1", "b", "xyz")
	scratch, trail := make([]byte, 0, 64), make([]*node, 0, 4)
	if n := testing.AllocsPerRun(100, func() {
		if rl, _, _ := d.match(e, scratch, trail); rl == nil {
			t.Fatal("no match")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestTwoDescriptorsAreNeverCountedAsOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		part := rapid.OneOf(rapid.StringOfN(rapid.SampledFrom([]rune("a~%7E\x00é")), 0, 6, -1), rapid.StringN(0, 300, 300))
		draw := func(name string) []string { return rapid.SliceOfN(part, 2, 2).Draw(t, name) }
		one, two := draw("one"), draw("two")
		d := &domain{name: "d", resource: "d"}
		id := func(e []string) count {
			c, _, err := d.countAs(&rule{}, entries(e...), nil, token.Parse, nil)
			if err != nil {
				t.Fatalf("%q: %v", e, err)
			}
			return c
		}
		if same := slices.Equal(one, two); (id(one).token == id(two).token) != same {
			t.Fatalf("%q and %q are counted as %s and %s", one, two, id(one).token, id(two).token)
		}
	})
}

func TestATokenEntryIsTheTokenAndTheRestTellsItsLimitsApart(t *testing.T) {
	rules := load(t, "d", `
domain: d
token: [user, key]
resource: path
descriptors:
  - key: user
    `+limitOf+`
    descriptors:
      - {key: path, `+limitOf+`}
  - {key: key, `+limitOf+`}
  - {key: path, `+limitOf+`}
`)
	d := rules.domains["d"]
	as := func(pairs ...string) count {
		e := entries(pairs...)
		rl, _, trail := d.match(e, nil, nil)
		c, _, err := d.countAs(rl, e, trail, token.Parse, nil)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	alone, search, mail := as("user", "jane"), as("user", "jane", "path", "/search"), as("user", "jane", "path", "/mail")
	if alone.token != "jane" || search.token != "jane" || alone.resource != "d" || search.resource != "%2Fsearch" {
		t.Errorf("%+v %+v", alone, search)
	}
	names := map[string]bool{alone.limits[0].Name: true, search.limits[0].Name: true, mail.limits[0].Name: true}
	if len(names) != 3 || alone.limits[0].IsUsageCounter() {
		t.Errorf("limits are named %v", names)
	}
	if again := as("user", "joe", "path", "/search"); &again.limits[0] != &search.limits[0] {
		t.Error("the same limit of two tokens is not one")
	}
	if c := as("key", "K"); c.token != "K" {
		t.Errorf("%+v", c)
	}
	if c := as("path", "/x"); c.token.Text() != "d~path~/x" || !c.limits[0].IsUsageCounter() {
		t.Errorf("%+v", c)
	}
	if c := as("user", strings.Repeat("x", 300)); !strings.HasPrefix(c.token.Text(), "d~user~xxx") || len(c.token.Text()) > 256 {
		t.Errorf("too long a token is counted as %s", c.token)
	}
}
