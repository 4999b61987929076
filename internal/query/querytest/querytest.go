// Package querytest holds every query.Source to the same answers.
//
// The suite gives a source some tokens, asks it about them in every way that the
// language has, and compares the answers with those of the plainest source there
// is: a filter over a slice. It depends on neither clock nor chance, so that what
// it says to a server can be recorded.
package querytest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/tallygate/tallygate/internal/query"
	"github.com/tallygate/tallygate/internal/token"
)

// Now is the time at which the suite asks.
var Now = time.Unix(1_760_000_000, 0)

// Options say what a source is.
type Options struct {
	// Keeps are the fields that the source keeps. About others it is not asked, but
	// for one question that it must refuse; in its rows they are not compared.
	Keeps []query.Field
}

// Run runs the suite. open returns a source that holds the given rows and no
// others; it closes it when the test ends.
func Run(t *testing.T, opts Options, open func(t *testing.T, rows []query.Row) query.Source) {
	rows := Rows()
	for i, r := range rows {
		rows[i] = opts.keep(r)
	}
	t.Run("language", func(t *testing.T) { opts.language(t, open(t, rows), rows) })
	t.Run("chance", func(t *testing.T) { opts.chance(t, open(t, rows), rows) })
	t.Run("pages", func(t *testing.T) { opts.pages(t, open(t, rows), rows) })
	t.Run("groups", func(t *testing.T) { opts.groups(t, open(t, rows), rows) })
	t.Run("nothing", func(t *testing.T) { opts.nothing(t, open(t, nil)) })
	t.Run("refusals", func(t *testing.T) { opts.refusals(t, open(t, rows)) })
}

// Rows returns the suite's tokens: ties in every figure, tokens that were never
// admitted, tokens that nobody owns, and names that mean something to a server's
// language. Times of first use are whole minutes, as a history has them.
func Rows() []query.Row {
	rng := rand.New(rand.NewPCG(1, 2))
	texts := []string{
		"acme", "acme-1", "acme-2", "ACME", "acme:search", "a", "b", "Jane {admin}", `back\slash`, `"quoted"`, "100%",
		"a,b", "a|b", "(x)", "@ops:[0 1]", "*", "a*", "-a", "~", "$a", "é", "日本", "line\nbreak", "tab\t", " lead", "trail ",
		"10", "010", "9", "nan", "inf", "null",
	}
	for i := range 40 {
		texts = append(texts, fmt.Sprintf("user-%02d", i))
	}
	words := []string{"free", "pro", "Pro", "pro plan", `a"b`, `c\d`, "e,f", "g|h", "{i}", "Ærø", "-", "$j", "*"}
	var rows []query.Row
	for _, text := range texts {
		id, err := token.Parse(text)
		if err != nil {
			panic(err)
		}
		r := query.Row{Token: id, Status: query.StatusActive, Rejected: rng.Int64N(4)}
		if rng.IntN(5) > 0 {
			r.Ops = 1 + rng.Int64N(30)*rng.Int64N(2)*1000
			r.Refunded = rng.Int64N(2)
			r.First = (Now.Unix()/60 - 60*24*30 + rng.Int64N(60*24*20)) * 60
			r.Last = max(r.First, Now.Unix()-[]int64{0, 59, 60, 3600, 86400, 7 * 86400, 30 * 86400}[rng.IntN(7)])
			r.Peak = min(r.Ops, 1+rng.Int64N(20))
			r.Rate = min(r.Peak, 1+rng.Int64N(5))
			r.Percent = []int64{0, 1, 50, 80, 99, 100, 150}[rng.IntN(7)]
		}
		if rng.IntN(3) > 0 {
			r.Policy = words[rng.IntN(3)]
			r.Owner = words[rng.IntN(len(words))]
		}
		if rng.IntN(6) == 0 {
			r.Status = query.StatusBlocked
		}
		for range rng.IntN(3) {
			r.Labels = append(r.Labels, []string{"env=", "team="}[rng.IntN(2)]+words[rng.IntN(len(words))])
		}
		slices.Sort(r.Labels)
		r.Labels = slices.Compact(r.Labels)
		rows = append(rows, r)
	}
	// The largest figure: one more is lost on the way through a float.
	rows[0].Ops, rows[1].Ops = query.MaxFigure, query.MaxFigure-1
	for i := range 2 {
		rows[i].First, rows[i].Last, rows[i].Rate, rows[i].Peak = 60, Now.Unix(), 1, 1
	}
	return rows
}

func (o Options) keeps(fields ...query.Field) bool {
	for _, f := range fields {
		if !slices.Contains(o.Keeps, f) {
			return false
		}
	}
	return true
}

// keep returns r without the fields that the source does not keep.
func (o Options) keep(r query.Row) query.Row {
	for _, f := range []struct {
		field query.Field
		clear func()
	}{
		{query.Ops, func() { r.Ops = 0 }},
		{query.Rejected, func() { r.Rejected = 0 }},
		{query.Refunded, func() { r.Refunded = 0 }},
		{query.Rate, func() { r.Rate = 0 }},
		{query.Peak, func() { r.Peak = 0 }},
		{query.Percent, func() { r.Percent = 0 }},
		{query.First, func() { r.First = 0 }},
		{query.Last, func() { r.Last = 0 }},
		{query.Policy, func() { r.Policy = "" }},
		{query.Owner, func() { r.Owner = "" }},
		{query.Status, func() { r.Status = query.StatusActive }},
		{query.Label, func() { r.Labels = nil }},
	} {
		if !o.keeps(f.field) {
			f.clear()
		}
	}
	return r
}

// answerable reports whether the source keeps all that q names.
func (o Options) answerable(q query.Query) bool {
	ok := o.keeps(q.Sort.Field)
	for _, m := range q.Match {
		ok = ok && o.keeps(m.Field)
	}
	for _, c := range q.Compare {
		ok = ok && o.keeps(c.Field)
	}
	return ok
}

// check asks one page and compares it. It returns the page's cursor.
func (o Options) check(t *testing.T, source query.Source, rows []query.Row, q query.Query) string {
	t.Helper()
	want, err := Search(rows, q, Now)
	if err != nil {
		t.Fatal(err)
	}
	got, err := source.Search(context.Background(), q, Now)
	if err != nil {
		t.Fatalf("%s: %v", q, err)
	}
	for i, r := range got.Rows {
		slices.Sort(r.Labels)
		got.Rows[i] = o.keep(r)
	}
	if len(got.Rows) != len(want.Rows) {
		t.Fatalf("%s: %d rows, want %d\ngot  %v\nwant %v", q, len(got.Rows), len(want.Rows), tokens(got.Rows), tokens(want.Rows))
	}
	for i := range want.Rows {
		if len(got.Rows[i].Labels) == 0 {
			got.Rows[i].Labels = nil
		}
		if !reflect.DeepEqual(got.Rows[i], want.Rows[i]) {
			t.Fatalf("%s: row %d\ngot  %+v\nwant %+v", q, i, got.Rows[i], want.Rows[i])
		}
	}
	if got.Next != want.Next {
		t.Fatalf("%s: cursor %q, want %q", q, got.Next, want.Next)
	}
	return got.Next
}

func tokens(rows []query.Row) []string {
	var all []string
	for _, r := range rows {
		all = append(all, string(r.Token))
	}
	return all
}

// questions are all that the language can say, at least once.
var questions = []string{
	"", "sort:ops", "sort:token", "sort:-token", "sort:rejected", "sort:-rejected", "sort:refunded", "sort:first", "sort:-first",
	"sort:last", "sort:-last", "sort:rate", "sort:-peak", "sort:-percent",
	"acme", "token:acme", "token:acme,ACME,nobody", "-acme", "a", `"Jane {"`, `token:"100%"`, `token:"@ops:[0 1]"`, `"*"`, `token:"a*"`,
	`token:"a*"*`, `token:" lead"`, `" "`, `token:"line` + "\n" + `break"`, `token:user*,acme*`, "token:user* token:user-1*", "nobody", "日", "-token:acme,b",
	"token:010", "0",
	"policy:free", "policy:pro", "policy:Pro", "policy:pro,Pro", "-policy:pro", "policy:none",
	`owner:"a\"b"`, `owner:"c\\d"`, `owner:"e,f"`, "owner:g|h,{i},$j", `owner:-`, `owner:"*"`, `owner:"pro plan"`, "owner:Ærø", "-owner:pro,free",
	"status:active", "status:blocked", "-status:blocked", "-status:active", "status:active,blocked", "-status:active,blocked",
	"label:env=free", `label:"env=a\"b"`, "label:env=pro,team=pro", "-label:env=pro", "label:env=pro label:team=free", "label:env", `label:"team=*"`, `label:"team=e,f"`,
	"ops>1000", "ops>=1001", "ops<1", "ops:0", "ops:1..5k", "ops>5 ops<5", "rejected<2", "refunded:1", "rate>1", "peak:2..10", "percent>=80%",
	"ops:9007199254740991", "ops<9007199254740991 ops>9007199254740989",
	"last<1m", "last<=1m", "last>7d", "last>=7d", "last<36h", "first<20d", "last:1d..7d", "last<1970-01-03", "first:1970-01-01",
	"last>2025-10-01 last<=2025-10-08", "last<99999d",
	"policy:pro -status:blocked ops>1 last<7d sort:-rejected", "-acme -owner:pro rejected>0 sort:token",
}

func (o Options) language(t *testing.T, source query.Source, rows []query.Row) {
	asked := 0
	for _, text := range questions {
		q, err := query.Parse(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if o.answerable(q) {
			asked++
			o.check(t, source, rows, q)
		}
	}
	t.Logf("%d questions", asked)
}

// chance asks for what nobody thought of: terms in any combination.
func (o Options) chance(t *testing.T, source query.Source, rows []query.Row) {
	rng := rand.New(rand.NewPCG(3, 4))
	for asked := 0; asked < 60; {
		var q query.Query
		for range 1 + rng.IntN(3) {
			part, err := query.Parse(questions[rng.IntN(len(questions))])
			if err != nil {
				t.Fatal(err)
			}
			q.Match = append(q.Match, part.Match...)
			q.Compare = append(q.Compare, part.Compare...)
			q.Sort = part.Sort
		}
		q.Limit = 1 + rng.IntN(20)
		if o.answerable(q) {
			asked++
			q.After = o.check(t, source, rows, q)
			o.check(t, source, rows, q) // the second page, or the first once more
		}
	}
}

// pages reads all tokens in every order, a few at a time.
func (o Options) pages(t *testing.T, source query.Source, rows []query.Row) {
	for _, f := range query.Fields {
		if !f.CanSort() || !o.keeps(f) {
			continue
		}
		for _, ascending := range []bool{false, true} {
			q := query.Query{Sort: query.Sort{Field: f, Ascending: ascending}, Limit: 17}
			for n := 0; n == 0 || q.After != ""; n++ {
				q.After = o.check(t, source, rows, q)
			}
		}
	}
}

func (o Options) groups(t *testing.T, source query.Source, rows []query.Row) {
	rows = slices.DeleteFunc(slices.Clone(rows), func(r query.Row) bool { return r.Ops > 1<<50 }) // whose sum is lost on a float
	for _, text := range []string{"ops<1G", "ops<1G policy:pro,free", "ops<1G rejected>0 acme", "ops<1G token:nobody"} {
		q, err := query.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		for _, by := range []query.Field{"", query.Policy, query.Owner, query.Status} {
			if !o.answerable(q) || by != "" && !o.keeps(by) {
				continue
			}
			want := Groups(rows, q, by, Now)
			got, err := source.Groups(context.Background(), q, by, Now)
			if err != nil {
				t.Fatalf("%s by %q: %v", q, by, err)
			}
			if !slices.Equal(got, want) {
				t.Fatalf("%s by %q\ngot  %+v\nwant %+v", q, by, got, want)
			}
		}
	}
}

// nothing asks a source that is empty.
func (o Options) nothing(t *testing.T, source query.Source) {
	o.check(t, source, nil, query.Query{})
	got, err := source.Groups(context.Background(), query.Query{}, "", Now)
	if want := []query.Group{{}}; !slices.Equal(got, want) || err != nil {
		t.Errorf("the sum of nothing: %v, %v", got, err)
	}
}

func (o Options) refusals(t *testing.T, source query.Source) {
	ctx := context.Background()
	if _, err := source.Search(ctx, query.Query{After: "!"}, Now); !errors.Is(err, query.ErrCursor) {
		t.Errorf("a broken cursor: %v", err)
	}
	if _, err := source.Groups(ctx, query.Query{}, query.Ops, Now); !errors.Is(err, query.ErrField) {
		t.Errorf("groups by ops: %v", err)
	}
	for _, f := range query.Fields {
		if o.keeps(f) {
			continue
		}
		q := query.Query{Match: []query.Match{{Field: f, Values: []string{"x"}}}}
		if f.Kind() != query.Word {
			q = query.Query{Compare: []query.Compare{{Field: f, Op: query.More, N: 1}}}
		}
		if _, err := source.Search(ctx, q, Now); !errors.Is(err, query.ErrField) {
			t.Errorf("%s, which is not kept: %v", q, err)
		}
		if f.CanSort() {
			if _, err := source.Search(ctx, query.Query{Sort: query.Sort{Field: f}}, Now); !errors.Is(err, query.ErrField) {
				t.Errorf("sorted by %s, which is not kept: %v", f, err)
			}
		}
	}
}
