// Package query is what can be asked about tokens, and the small language in
// which people ask it.
//
//	match     a field that holds words is, or is not, one of some words
//	compare   a field that holds a figure or a time lies beyond some value
//	sort      the order of the answer; tokens that are equal in it follow their IDs
//	page      so many rows, from where the page before ended
//
// All matches and comparisons must hold. A query is a value; whoever keeps tokens
// answers it as a Source: the search index and the history do, and the tests in
// querytest hold them to the same answers.
//
// A worked example. The text
//
//	owner:acme,globex -status:blocked ops>1k last<7d sort:-rejected
//
// asks for the tokens of two owners that are not blocked, had more than 1000
// units admitted, and were used within the last seven days, the most rejected
// first. Seven days are an age: the query stays the same from day to day, and
// Ranges turns it into times when it is answered.
package query

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/tallygate/tallygate/internal/token"
)

// Query asks for tokens. The zero value asks for all of them, the most used first.
type Query struct {
	Match   []Match
	Compare []Compare
	Sort    Sort
	Limit   int    // rows of a page, at most MaxLimit; DefaultLimit when 0
	After   string // Page.Next of the page before; "" is the beginning
}

// The size of a page, in rows.
const (
	DefaultLimit = 100
	MaxLimit     = 1000
)

// MaxGroups is the largest number of groups that are returned.
const MaxGroups = 1000

// Match holds when the field is one of the values or, with Prefix, begins with
// one of them; Not turns that round. A token without the field matches nothing,
// and so matches every Not.
type Match struct {
	Field  Field
	Values []string // at least one; of Token in the canonical form of a token.ID
	Prefix bool     // only of Token
	Not    bool
}

// Op compares a field with a value.
type Op string

// The comparisons.
const (
	Less    Op = "<"
	AtMost  Op = "<="
	Equal   Op = "="
	AtLeast Op = ">="
	More    Op = ">"
)

// Compare holds when the field stands in the relation Op to N. A time that never
// was (the last use of a token that has never been admitted) is in no relation to
// any time.
type Compare struct {
	Field Field
	Op    Op
	// N is units or percent of a figure, unix seconds of a time, or seconds of an age.
	N int64
	// Age compares how long ago the time was, so that "last < 7d" is recent use. No
	// age is Equal to another: it lasts a second only.
	Age bool
}

// Sort is an order of tokens: by a figure, a time or the token, and among equals
// by token in the same direction. The zero value is the highest ops first.
type Sort struct {
	Field     Field
	Ascending bool
}

// MaxFigure is the largest figure, unit or time that is kept: beyond it neither
// Lua nor RediSearch can tell neighbours apart.
const MaxFigure = 1<<53 - 1

// Range is an inclusive range of a figure or a time: units, percent or unix
// seconds. It holds nothing when Min > Max, and everything from 0 to MaxFigure.
type Range struct {
	Field    Field
	Min, Max int64
}

// Ranges returns what the comparisons together allow each field that they name at
// the time now, one range per field, in the order of Fields.
func (q Query) Ranges(now time.Time) []Range {
	var all []Range
	for _, f := range Fields {
		r, named := Range{Field: f, Min: 0, Max: MaxFigure}, false
		for _, c := range q.Compare {
			if c.Field == f {
				r, named = r.intersect(c.bounds(now.Unix())), true
			}
		}
		if named {
			all = append(all, r)
		}
	}
	return all
}

func (r Range) intersect(s Range) Range {
	return Range{r.Field, max(r.Min, s.Min), min(r.Max, s.Max)}
}

// bounds returns the range in which c holds at a time in unix seconds.
func (c Compare) bounds(now int64) Range {
	n, op := c.N, c.Op
	if c.Age {
		n, op = now-n, op.mirrored()
	}
	r := Range{Field: c.Field, Min: 0, Max: MaxFigure}
	if c.Field.Kind() == Time {
		r.Min = 1 // 0 stands for never
	}
	switch op {
	case Less:
		r.Max = min(r.Max, n-1)
	case AtMost:
		r.Max = min(r.Max, n)
	case Equal:
		r.Min, r.Max = max(r.Min, n), min(r.Max, n)
	case AtLeast:
		r.Min = max(r.Min, n)
	case More:
		r.Min = max(r.Min, n+1)
	}
	return r
}

// mirrored is the comparison of times that op is of ages: older is earlier.
func (op Op) mirrored() Op {
	switch op {
	case Less:
		return More
	case AtMost:
		return AtLeast
	case AtLeast:
		return AtMost
	case More:
		return Less
	}
	return op
}

// Source answers queries. Its errors wrap ErrCursor and ErrField.
type Source interface {
	// Search returns a page of the tokens that q asks for, as of now.
	Search(ctx context.Context, q Query, now time.Time) (Page, error)
	// Groups adds up the tokens that q asks for by one of the fields that can be
	// grouped by: at most MaxGroups groups, the highest ops first, among equals in
	// the order of their values. The order and page of q do not matter. Tokens
	// without the field are in the group "". By no field, "", there is exactly one
	// group, the sum of all.
	Groups(ctx context.Context, q Query, by Field, now time.Time) ([]Group, error)
}

// Errors of sources and of ParseSort; they are wrapped with what was wrong.
var (
	ErrCursor = errors.New("invalid cursor")
	ErrSort   = errors.New("invalid sort")
	// ErrField: the source does not keep the field, another one may.
	ErrField = errors.New("field cannot be asked for here")
)

// Page is part of an answer.
type Page struct {
	Rows []Row
	// Next is the cursor of the next page, "" after the last. A token that moves in
	// the order while pages are read may be met twice or not at all; all others are
	// met once.
	Next string
}

// Row is what is known about a token. Times are unix seconds, 0 for never.
type Row struct {
	Token    token.ID
	Ops      int64 // admitted units, ever
	Rejected int64 // units, ever
	Refunded int64 // units, ever
	Rate     int64 // admitted units in the latest minute of use
	Peak     int64 // admitted units in the busiest minute
	Percent  int64 // of the quota that is used up most
	First    int64
	Last     int64
	Policy   string
	Owner    string
	Status   string   // StatusActive or StatusBlocked
	Labels   []string // sorted
}

// What a token's status can be.
const (
	StatusActive  = "active" // also that of a token that nobody has ever touched
	StatusBlocked = "blocked"
)

// Group is the sum of the tokens that have one value of a field.
type Group struct {
	Value    string
	Tokens   int64
	Ops      int64 // units, as the following
	Rejected int64
	Refunded int64
}

// Figure returns the figure or time of r in f; 0 when f holds words.
func (r Row) Figure(f Field) int64 {
	switch f {
	case Ops:
		return r.Ops
	case Rejected:
		return r.Rejected
	case Refunded:
		return r.Refunded
	case Rate:
		return r.Rate
	case Peak:
		return r.Peak
	case Percent:
		return r.Percent
	case First:
		return r.First
	case Last:
		return r.Last
	}
	return 0
}

// Canonical returns q with its matches and comparisons in a fixed order, none
// twice, and the defaults of sort and limit filled in: two queries that print the
// same are equal in this form. It shares nothing with q.
func (q Query) Canonical() Query {
	matches := make([]Match, 0, len(q.Match))
	for _, m := range q.Match {
		m.Values = slices.Compact(slices.Sorted(slices.Values(m.Values)))
		matches = append(matches, m)
	}
	slices.SortFunc(matches, compareMatches)
	q.Match = slices.CompactFunc(matches, func(a, b Match) bool { return compareMatches(a, b) == 0 })
	q.Compare = slices.Clone(q.Compare)
	slices.SortFunc(q.Compare, compareComparisons)
	q.Compare = slices.Compact(q.Compare)
	if len(q.Match) == 0 {
		q.Match = nil
	}
	if len(q.Compare) == 0 {
		q.Compare = nil
	}
	if q.Sort.Field == "" {
		q.Sort = Sort{Field: Ops}
	}
	if q.Limit == 0 {
		q.Limit = DefaultLimit
	}
	return q
}

func compareMatches(a, b Match) int {
	return cmp.Or(
		cmp.Compare(a.Field.place(), b.Field.place()),
		compareBools(a.Not, b.Not),
		compareBools(a.Prefix, b.Prefix),
		slices.Compare(a.Values, b.Values),
	)
}

func compareComparisons(a, b Compare) int {
	return cmp.Or(
		cmp.Compare(a.Field.place(), b.Field.place()),
		compareBools(a.Age, b.Age),
		cmp.Compare(a.N, b.N),
		cmp.Compare(a.Op, b.Op),
	)
}

func compareBools(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}
