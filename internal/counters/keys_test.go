package counters_test

import (
	"testing"

	"github.com/tallygate/tallygate/internal/counters"
	"github.com/tallygate/tallygate/internal/token"
)

const ns = counters.DefaultNamespace

func TestParseKeyTellsCountersByShapeAlone(t *testing.T) {
	counter := func(kind counters.Kind, id token.ID, resource string, minute int64) counters.Counter {
		return counters.Counter{Kind: kind, Token: id, Resource: resource, Minute: minute}
	}
	cases := map[string]counters.Counter{
		"{api:T}:29000000":                    counter(counters.Admitted, "T", "", 29000000),
		"{api:T}:29000000:search":             counter(counters.Admitted, "T", "search", 29000000),
		"{api:T}:29000000:rejected":           counter(counters.Admitted, "T", "rejected", 29000000),
		"{api:T}:29000000::rejected":          counter(counters.Rejected, "T", "", 29000000),
		"{api:T}:29000000:search:rejected":    counter(counters.Rejected, "T", "search", 29000000),
		"{api:T}:29000000:search:refunded":    counter(counters.Refunded, "T", "search", 29000000),
		"{api:::1}:29000000:a%3Ab":            counter(counters.Admitted, "::1", "a%3Ab", 29000000),
		"{api:T}:0":                           counter(counters.Foreign, "T", "", 0),
		"{api:T}:07":                          counter(counters.Foreign, "T", "", 7),
		"{api:user name 100%}:59":             counter(counters.Foreign, "user name 100%", "", 59),
		"{api:T}:60":                          counter(counters.Admitted, "T", "", 60),
		"{api:T}:007":                         {},
		"{api:T}:54:search":                   {},
		"{api:T}:54::rejected":                {},
		"{api:T}:data":                        {},
		"{api:T}:":                            {},
		"{api:T}":                             {},
		"{api:}:54":                           {},
		"{api:T}:29000000:":                   {},
		"{api:T}:29000000:a:b":                {},
		"{api:T}:29000000:search:rejected:x":  {},
		"{api:T}:29000000:a b":                {},
		"{api:T}:29000000:%41":                {}, // not canonical: it would be a second name for A
		"{api:T}:1234567890123":               {},
		"{api:T}:-5":                          {},
		"{web:T}:54":                          {},
		"limit:{api:T}:daily:29000000":        {},
		"applied:{api:T}":                     {},
		"":                                    {},
		"{api:T\x00}:54":                      {},
		"{api:T}:29000000:search:REJECTED":    {},
		"{api:T}:029000000":                   {},
		"{api:T}:29000000::":                  {},
		"{api:T}:29000000::refunded":          counter(counters.Refunded, "T", "", 29000000),
		"{api:T}:29000000:rejected:rejected":  counter(counters.Rejected, "T", "rejected", 29000000),
		"{api:T}:99":                          counter(counters.Admitted, "T", "", 99),
		"{api:T}:59 ":                         {},
		"{api:T}:５":                           {},
		"{api:%7BT%7D}:29000000:v1%2Fsearch":  counter(counters.Admitted, "%7BT%7D", "v1%2Fsearch", 29000000),
		"{api:T}:29000000:v1%2fsearch":        {},
		"prefix{api:T}:29000000":              {},
		"{api:T}x:29000000":                   {},
		"{api:{T}}:29000000":                  {},
		"{api:T}:29000000:search:admitted":    {},
		"{api:T}:+54":                         {},
		"{api:T}:29000000:search:rejected\n":  {},
		"{api:T}:29000000:search:refunded:::": {},
	}
	for key, want := range cases {
		if got := ns.ParseKey(key); got != want {
			t.Errorf("ParseKey(%q) = %+v, want %+v", key, got, want)
		}
	}
}

func TestForeignMinuteIsTheNearest(t *testing.T) {
	const hour = 29_000_040 // a full hour, in epoch minutes
	for _, c := range []struct {
		minuteOfHour int
		now, want    int64 // epoch minutes
	}{
		{0, hour, hour},
		{59, hour, hour - 1}, // written just before the hour turned
		{0, hour + 59, hour + 60},
		{30, hour, hour - 30}, // equally near: the earlier one
		{29, hour, hour + 29},
		{54, hour + 55, hour + 54},
	} {
		if got := counters.ForeignMinute(c.minuteOfHour, c.now*60_000+59_999); got != c.want {
			t.Errorf("ForeignMinute(%d) at minute %d = %d, want %d", c.minuteOfHour, c.now, got, c.want)
		}
	}
}

// FuzzKeys proves that every counter's key is read back as what it was made of,
// and that whatever reads as a counter is the key of exactly that counter.
func FuzzKeys(f *testing.F) {
	f.Add("T", "search", int64(29000000), "{api:T}:29000000:search:rejected")
	f.Add("Jane {admin}", "", int64(60), "{api:T}:07")
	f.Add("::1", "a:b", int64(999_999_999_999), "{api:T}:29000000::refunded")
	f.Fuzz(func(t *testing.T, text, name string, minute int64, key string) {
		if c := ns.ParseKey(key); c.Kind != counters.Other {
			back := map[counters.Kind]string{
				counters.Admitted: ns.Usage(c.Token, c.Resource, c.Minute),
				counters.Rejected: ns.Rejected(c.Token, c.Resource, c.Minute),
				counters.Refunded: ns.Refunded(c.Token, c.Resource, c.Minute),
				counters.Foreign:  ns.Foreign(c.Token, int(c.Minute)),
			}[c.Kind]
			if again := ns.ParseKey(back); again != c {
				t.Fatalf("ParseKey(%q) = %+v, but its own key %q reads %+v", key, c, back, again)
			}
			if back != key && c.Kind != counters.Foreign {
				t.Fatalf("%q and %q are both the key of %+v", key, back, c)
			}
		}
		id, err := token.Parse(text)
		if err != nil {
			return
		}
		resource, err := token.ParseResource(name)
		if err != nil || minute < 60 || minute > 999_999_999_999 {
			return
		}
		for kind, key := range map[counters.Kind]string{
			counters.Admitted: ns.Usage(id, resource, minute),
			counters.Rejected: ns.Rejected(id, resource, minute),
			counters.Refunded: ns.Refunded(id, resource, minute),
		} {
			want := counters.Counter{Kind: kind, Token: id, Resource: resource, Minute: minute}
			if got := ns.ParseKey(key); got != want {
				t.Fatalf("ParseKey(%q) = %+v, want %+v", key, got, want)
			}
		}
		foreign := counters.Counter{Kind: counters.Foreign, Token: id, Minute: minute % 60}
		if got := ns.ParseKey(ns.Foreign(id, int(minute%60))); got != foreign {
			t.Fatalf("a foreign key reads as %+v, want %+v", got, foreign)
		}
		for _, start := range []int64{-1, 0, minute} {
			if c := ns.ParseKey(ns.Limit(id, "daily", start)); c.Kind != counters.Other {
				t.Fatalf("a limit's key reads as a counter: %+v", c)
			}
		}
	})
}
