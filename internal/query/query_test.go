package query_test

import (
	"encoding/base64"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tallygate/tallygate/internal/query"
	"github.com/tallygate/tallygate/internal/token"
)

func TestCanonicalText(t *testing.T) {
	for text, want := range map[string]string{
		"": "",
		"  owner:acme   ops>1000 last<7d sort:-ops ": "owner:acme ops>1000 last<7d",
		"ops>1k owner:acme":                          "owner:acme ops>1000",
		"acme":                                       "token:acme*",
		`-"Jane {a"`:                                 `-token:"Jane {a"*`,
		"token:b,a,b":                                "token:a,b",
		"token:b*,a*":                                "token:a*,b*",
		"policy=free":                                "policy:free",
		"-status:blocked status:active":              "status:active -status:blocked",
		"label:env=prod label:team=b":                "label:env=prod label:team=b",
		`owner:"A, \"B\" \\ C"`:                      `owner:"A, \"B\" \\ C"`,
		"owner:Ærø":                                  "owner:Ærø",
		"ops:5 ops:10..20":                           "ops=5 ops>=10 ops<=20",
		"ops<=2M rejected<1G":                        "ops<=2000000 rejected<1000000000",
		"percent>=80%":                               "percent>=80",
		"rate>0 peak>100":                            "rate>0 peak>100",
		"last>1w12h":                                 "last>7d12h",
		"last<90m first>36h":                         "first>1d12h last<1h30m",
		"last<0s":                                    "last<0s",
		"last:2026-11-01":                            "last>=2026-11-01T00:00:00Z last<2026-11-02T00:00:00Z",
		"last:2026-11-01..2026-11-30":                "last>=2026-11-01T00:00:00Z last<2026-12-01T00:00:00Z",
		"last:1d..7d":                                "last>=1d last<=7d",
		"first>2026-11-01T13:00:00+01:00":            "first>2026-11-01T12:00:00Z",
		"sort:token":                                 "sort:token",
		"sort:-last ops>1":                           "ops>1 sort:-last",
	} {
		q, err := query.Parse(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if got := q.String(); got != want {
			t.Errorf("%q is printed as %q, want %q", text, got, want)
		}
	}
}

func TestErrorsPointAtTheCharacter(t *testing.T) {
	for _, c := range []struct{ text, caret, problem string }{
		{"ops>x", "    ^", "whole number"},
		{"ops>9007199254740992", "    ^", "whole number"},
		{"ops>9007199254741k", "    ^", "whole number"},
		{"ops>-1", "    ^", "whole number"},
		{"ops>", "    ^", "whole number"},
		{"ops:1..", "       ^", "whole number"},
		{"ops>1..2", "    ^", "a range stands after a colon"},
		{"owner:acme opps>3", "           ^", "no field \"opps\""},
		{"user:42", "^", "in quotes"},
		{"é owner:a,,b", "          ^", "a word is missing"},
		{"owner:", "      ^", "a word is missing"},
		{"owner>acme", "     ^", "owner:value"},
		{"owner:a*", "       ^", "only tokens"},
		{`owner:"a`, "      ^", "not closed"},
		{`owner:"a\b"`, `        ^`, "backslash"},
		{`owner:"a"b`, `         ^`, "a blank should follow"},
		{"token:a*,b", "         ^", "all values"},
		{`token:""`, "      ^", "missing"},
		{"status:idle", "       ^", "active or blocked"},
		{"-ops:5", "^", "minus sign"},
		{"last<7", "     ^", "an age"},
		{"last<7y", "     ^", "an age"},
		{"last<1h2d", "     ^", "an age"},
		{"last<1d1d", "     ^", "an age"},
		{"last<9999999999d", "     ^", "an age"},
		{"last<2026-13-01", "     ^", "an age"},
		{"last:7d", "     ^", "last<7d for within"},
		{"last:7d..2026-11-01", "     ^", "two times or between two ages"},
		{"sort:owner", "     ^", "one of token, ops"},
		{"sort:ops sort:last", "         ^", "one order"},
		{"-sort:ops", "^", "one order"},
		{"sort>ops", "     ^", "after a colon"},
		{"a\xff", " ^", "UTF-8"},
		{strings.Repeat("a ", query.MaxTerms) + "b", strings.Repeat(" ", 2*query.MaxTerms) + "^", "at most 32 terms"},
		{strings.Repeat("a", query.MaxText+1), strings.Repeat(" ", query.MaxText) + "^", "4096"},
		{"owner:" + strings.Repeat("a", 257), "      ^", "256"},
		{"owner:" + strings.Repeat("a,", 64) + "a", strings.Repeat(" ", 6+128) + "^", "64 values"},
		{"token:" + strings.Repeat("a", 257), "      ^", "256"},
		{"owner:\"a\x01\"", "      ^", "control"},
		{`owner:" a"`, "      ^", "blanks"},
	} {
		_, err := query.Parse(c.text)
		var e *query.Error
		if !errors.As(err, &e) {
			t.Errorf("%.40q: %v, want an *Error", c.text, err)
			continue
		}
		if _, caret, _ := strings.Cut(e.Caret(), "\n"); caret != c.caret || !strings.Contains(e.Problem, c.problem) {
			t.Errorf("%s\n%s; want %q at\n%s", e.Caret(), e.Problem, c.problem, c.caret)
		}
	}
}

func TestRangesAreWhatComparisonsAllowTogether(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	const most = query.MaxFigure
	for text, want := range map[string]query.Range{
		"ops>5":                               {query.Ops, 6, most},
		"ops<5":                               {query.Ops, 0, 4},
		"ops:5":                               {query.Ops, 5, 5},
		"ops>=5 ops<=7 ops<10":                {query.Ops, 5, 7},
		"ops>5 ops<5":                         {query.Ops, 6, 4},
		"last<100s":                           {query.Last, 999_901, most},
		"last<=100s":                          {query.Last, 999_900, most},
		"last>100s":                           {query.Last, 1, 999_899},
		"last:10s..100s":                      {query.Last, 999_900, 999_990},
		"last<100d":                           {query.Last, 1, most}, // before the epoch, yet not never
		"first<1970-01-02":                    {query.First, 1, 86_399},
		"first:1970-01-02T00:00:01Z first>1d": {query.First, 86_401, 86_401},
	} {
		q, err := query.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := q.Ranges(now); len(got) != 1 || got[0] != want {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
}

func TestCursorsBelongToTheirOrder(t *testing.T) {
	byOps := query.Sort{}
	text := byOps.After(query.Row{Token: "a", Ops: 7}).String()
	c, err := query.ParseCursor(text, query.Sort{Field: query.Ops})
	if want := (query.Cursor{Sort: "-ops", Value: 7, Token: "a"}); c != want || err != nil {
		t.Errorf("%+v, %v, want %+v", c, err, want)
	}
	negative := base64.RawURLEncoding.EncodeToString([]byte(`{"s":"-ops","v":-1,"t":"a"}`))
	for _, c := range []struct {
		text string
		sort query.Sort
	}{
		{text, query.Sort{Field: query.Last}},
		{text, query.Sort{Field: query.Ops, Ascending: true}},
		{"!", byOps},
		{"e30", byOps}, // {}
		{negative, byOps},
	} {
		if _, err := query.ParseCursor(c.text, c.sort); !errors.Is(err, query.ErrCursor) {
			t.Errorf("%s by %v: %v", c.text, c.sort, err)
		}
	}
}

func TestPrintedQueriesParseBack(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		want := anyQuery(rt).Canonical()
		got, err := query.Parse(want.String())
		if err != nil {
			var e *query.Error
			errors.As(err, &e)
			rt.Fatalf("%v\n%s", err, e.Caret())
		}
		if !reflect.DeepEqual(got, want) {
			rt.Fatalf("%s\ngot  %+v\nwant %+v", want, got, want)
		}
	})
}

// anyQuery draws a query, without its page.
func anyQuery(rt *rapid.T) query.Query {
	var q query.Query
	for range rapid.IntRange(0, 5).Draw(rt, "matches") {
		m := query.Match{
			Field: rapid.SampledFrom(query.Fields[:5]).Draw(rt, "field"),
			Not:   rapid.Bool().Draw(rt, "not"),
		}
		text := rapid.StringMatching(`[a-z"*\\,.:{} é-]{1,8}`).Filter(func(s string) bool { return strings.TrimSpace(s) == s })
		switch m.Field {
		case query.Status:
			text = rapid.SampledFrom([]string{query.StatusActive, query.StatusBlocked})
		case query.Token:
			m.Prefix = rapid.Bool().Draw(rt, "prefix")
			text = rapid.Map(text, func(s string) string {
				id, err := token.Parse(s)
				if err != nil {
					rt.Fatal(err)
				}
				return string(id)
			})
		}
		m.Values = rapid.SliceOfN(text, 1, 3).Draw(rt, "values")
		q.Match = append(q.Match, m)
	}
	for range rapid.IntRange(0, 5).Draw(rt, "comparisons") {
		c := query.Compare{
			Field: rapid.SampledFrom(query.Fields[5:]).Draw(rt, "field"),
			Op:    rapid.SampledFrom([]query.Op{query.Less, query.AtMost, query.AtLeast, query.More}).Draw(rt, "op"),
			N:     rapid.Int64Range(1, 1<<34).Draw(rt, "n"),
		}
		c.Age = c.Field.Kind() == query.Time && rapid.Bool().Draw(rt, "age")
		if !c.Age && rapid.Bool().Draw(rt, "equal") {
			c.Op = query.Equal
		}
		q.Compare = append(q.Compare, c)
	}
	sortable := slices.DeleteFunc(slices.Clone(query.Fields), func(f query.Field) bool { return !f.CanSort() })
	q.Sort = query.Sort{Field: rapid.SampledFrom(sortable).Draw(rt, "sort"), Ascending: rapid.Bool().Draw(rt, "ascending")}
	return q
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"owner:acme,globex -status:blocked ops>1k last<7d sort:-rejected", `-"Jane {a"* token:"a\"b"*,"c\\"`,
		"last:2026-11-01..2026-11-30 first>1w12h", "percent>=80% ops:1..2", "a\xff", "ops>", `"`,
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		q, err := query.Parse(text)
		if err != nil {
			var e *query.Error
			if !errors.As(err, &e) || e.Error() == "" || !strings.HasSuffix(e.Caret(), "^") {
				t.Fatalf("%q: %v", text, err)
			}
			return
		}
		again, err := query.Parse(q.String())
		if err != nil || !reflect.DeepEqual(again, q) {
			t.Fatalf("%q is printed as %q and parsed back as %+v, %v, want %+v", text, q, again, err, q)
		}
		for _, r := range q.Ranges(time.Unix(1_800_000_000, 0)) {
			if r.Min < 0 || r.Max > query.MaxFigure {
				t.Fatalf("%q: range %+v", text, r)
			}
		}
	})
}
