package dashboard

import (
	"net/url"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestEverySpanHasWholeStepsAndFewEnough(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(rapid.Int64Range(1e9, 4e9).Draw(t, "now"), 0)
		zone := rapid.SampledFrom([]string{"UTC", "Asia/Kathmandu", "America/St_Johns"}).Draw(t, "zone")
		loc, err := time.LoadLocation(zone)
		if err != nil {
			t.Fatal(err)
		}
		q := url.Values{}
		if rapid.Bool().Draw(t, "named") {
			q.Set("span", rapid.StringMatching(`[1-9][0-9]{0,2}[mhdw]`).Draw(t, "span"))
		} else {
			from := time.Unix(rapid.Int64Range(0, 4e9).Draw(t, "from"), 0)
			q.Set("from", from.In(loc).Format(inputLayout))
			q.Set("to", from.Add(time.Duration(rapid.Int64Range(60, 5e8).Draw(t, "length"))*time.Second).UTC().Format(time.RFC3339))
		}
		s, err := parseSpan(q, now, loc)
		if err != nil {
			return // a local time that does not exist, or a span that ends before it begins
		}
		length := s.To.Sub(s.From)
		if length <= 0 || length%s.Step != 0 || length/s.Step > maxColumns+1 || s.From.Unix()%int64(s.Step/time.Second) != 0 {
			t.Fatalf("%v: %v to %v in steps of %v", q, s.From, s.To, s.Step)
		}
		if s.Name != "" && (s.To.Before(now) || s.To.Sub(now) > s.Step) {
			t.Fatalf("%v at %v ends at %v", q, now, s.To)
		}
	})
}

func TestOnlyPathsOfThisDashboardAreReturnedTo(t *testing.T) {
	for _, elsewhere := range []string{"", "https://elsewhere.example", "//elsewhere.example", `/\elsewhere.example`, "javascript:alert(1)", "/\t/elsewhere.example", "tokens"} {
		if got := nextPath(elsewhere); got != "/" {
			t.Errorf("%q leads to %q", elsewhere, got)
		}
	}
	if got := nextPath("/token?t=a%2Fb&span=7d"); got != "/token?t=a%2Fb&span=7d" {
		t.Errorf("got %q", got)
	}
}

func TestFiguresAreWrittenExactly(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", -1234567: "−1,234,567", 1 << 53: "9,007,199,254,740,992"} {
		if got := units(n); got != want {
			t.Errorf("%d is written %s", n, got)
		}
	}
	for _, c := range []struct {
		part, whole int64
		want        string
	}{{0, 0, "0 %"}, {1, 1e9, "< 0.01 %"}, {1, 1000, "0.10 %"}, {1, 3, "33.3 %"}, {99999, 100000, "99.9 %"}, {5, 5, "100 %"}} {
		if got := share(c.part, c.whole); got != c.want {
			t.Errorf("%d of %d is written %s, want %s", c.part, c.whole, got, c.want)
		}
	}
	for d, want := range map[time.Duration]string{90 * time.Second: "90 s", 5 * time.Minute: "5 min", 36 * time.Hour: "36 h", 24 * time.Hour: "1 day", 14 * 24 * time.Hour: "2 weeks", 7 * 24 * time.Hour: "7 days", 1500 * time.Millisecond: "1500 ms"} {
		if got := length(d); got != want {
			t.Errorf("%v is written %s, want %s", d, got, want)
		}
	}
	for r, want := range map[float64]string{0: "0", .0001: "< 0.001", .25: "0.250", 4.306: "4.31", 14.36: "14.4", 12345.6: "12,346"} {
		if got := rate(r); got != want {
			t.Errorf("%v is written %s, want %s", r, got, want)
		}
	}
}
