package search

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tallygate/tallygate/internal/query"
	"github.com/tallygate/tallygate/internal/token"
)

// Search implements query.Source.
func (x *Index) Search(ctx context.Context, q query.Query, now time.Time) (query.Page, error) {
	page, err := x.search(ctx, q.Canonical(), now)
	if err != nil {
		return query.Page{}, fmt.Errorf("search tokens: %w", err)
	}
	return page, nil
}

func (x *Index) search(ctx context.Context, q query.Query, now time.Time) (query.Page, error) {
	a, err := newAsk(q, now)
	if err != nil {
		return query.Page{}, err
	}
	if !q.Sort.Field.CanSort() {
		return query.Page{}, fmt.Errorf("%w: sorted by %q", query.ErrField, q.Sort.Field)
	}
	if q.After != "" {
		c, err := query.ParseCursor(q.After, q.Sort)
		if err != nil {
			return query.Page{}, err
		}
		a = a.after(c, q.Sort)
	}
	if a.none {
		return query.Page{}, nil
	}
	rows, err := x.first(ctx, a, q.Sort, q.Limit+1)
	if err != nil {
		return query.Page{}, err
	}
	page := query.Page{Rows: rows}
	if len(rows) > q.Limit {
		page.Rows = rows[:q.Limit]
		page.Next = q.Sort.After(rows[q.Limit-1]).String()
	}
	return page, nil
}

// first returns the first n rows of an order.
func (x *Index) first(ctx context.Context, a ask, s query.Sort, n int) ([]query.Row, error) {
	if s.Field == query.Token {
		return x.sorted(ctx, a, s, n)
	}
	all := a.rangeOf(s.Field)
	w, err := x.window(ctx, a, s, all, n)
	if err != nil {
		return nil, err
	}
	rows, err := x.sorted(ctx, a.within(w), s, n)
	if err != nil || len(rows) >= n || w == all {
		return rows, err
	}
	return x.sorted(ctx, a, s, n) // tokens have left the window since it was measured
}

// window returns a part of a range of the figure that is sorted by, at the end
// where the order begins, that holds at least n rows and, if the figures allow it,
// not many more.
func (x *Index) window(ctx context.Context, a ask, s query.Sort, all query.Range, n int) (query.Range, error) {
	most := max(x.least, x.slack*n)
	count := func(r query.Range) (int, error) {
		p := plan{query: a.within(r).query(), limit: most}
		if len(a.filter) > 0 {
			p.load, p.filter = []string{string(query.Token), string(s.Field)}, strings.Join(a.filter, " && ")
		}
		rows, err := x.client.aggregate(ctx, x.alias, p) // unsorted: it stops at the limit
		return len(rows), err
	}
	// The window ends at x, and begins where the order does.
	upTo := func(x int64) query.Range {
		if s.Ascending {
			return query.Range{Field: all.Field, Min: all.Min, Max: x}
		}
		return query.Range{Field: all.Field, Min: x, Max: all.Max}
	}
	rows, err := count(all)
	if err != nil || rows < most {
		return all, err
	}
	low, high := all.Min, all.Max // the end that is looked for is in between
	for end := x.hint(s, low, high); low < high; end = between(low, high) {
		if s.Ascending && end == high {
			end-- // that would be no step
		}
		rows, err := count(upTo(end))
		switch {
		case err != nil:
			return all, err
		case n <= rows && rows < most:
			x.setHint(s, end)
			return upTo(end), nil
		case s.Ascending && rows < n:
			low = end + 1
		case s.Ascending:
			high = end
		case rows < n:
			high = end - 1
		default:
			low = end
		}
	}
	return upTo(low), nil // so many rows have that one figure
}

// hint returns where to look first: where the last window of the order ended.
func (x *Index) hint(s query.Sort, low, high int64) int64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	if end, ok := x.hints[s]; ok && low < end && end <= high {
		return end
	}
	return between(low, high)
}

func (x *Index) setHint(s query.Sort, end int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.hints[s] = end
}

// between returns a figure in (low, high], of the size in the middle as long as
// the sizes differ much: usage spreads over orders of magnitude.
func between(low, high int64) int64 {
	if high/8 > low {
		size := (len(strconv.FormatInt(low, 2)) + len(strconv.FormatInt(high, 2))) / 2
		if end := int64(1) << (size - 1); low < end && end <= high {
			return end
		}
	}
	return low + (high-low+1)/2
}

// sorted returns the first n of all rows that a asks for.
func (x *Index) sorted(ctx context.Context, a ask, s query.Sort, n int) ([]query.Row, error) {
	p := plan{query: a.query(), filter: strings.Join(a.filter, " && "), limit: n}
	for _, f := range fields {
		p.load = append(p.load, string(f.as))
	}
	p.sort = append(p.sort, order{string(s.Field), s.Ascending})
	if s.Field != query.Token {
		p.sort = append(p.sort, order{string(query.Token), s.Ascending})
	}
	replies, err := x.client.aggregate(ctx, x.alias, p)
	if err != nil {
		return nil, err
	}
	rows := make([]query.Row, len(replies))
	for i, reply := range replies {
		if rows[i], err = row(reply); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

// row reads a token's fields.
func row(reply map[string]string) (query.Row, error) {
	r := query.Row{
		Token:  token.ID(reply[string(query.Token)]),
		Policy: reply[string(query.Policy)],
		Owner:  reply[string(query.Owner)],
		Status: cmp.Or(reply[string(query.Status)], query.StatusActive),
	}
	if labels := reply[string(query.Label)]; labels != "" {
		r.Labels = strings.Split(labels, separator)
		slices.Sort(r.Labels)
	}
	for f, n := range map[query.Field]*int64{
		query.Ops: &r.Ops, query.Rejected: &r.Rejected, query.Refunded: &r.Refunded, query.Rate: &r.Rate,
		query.Peak: &r.Peak, query.Percent: &r.Percent, query.First: &r.First, query.Last: &r.Last,
	} {
		var err error
		if *n, err = figure(reply, string(f)); err != nil {
			return query.Row{}, err
		}
	}
	return r, nil
}

// figure reads a number; 0 when it is missing.
func figure(reply map[string]string, name string) (int64, error) {
	text, ok := reply[name]
	if !ok {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%w: %s is %.32q, which is no whole number", ErrReply, name, text)
	}
	return n, nil
}

// Groups implements query.Source. Sums beyond query.MaxFigure are rounded, as
// RediSearch adds up floats.
func (x *Index) Groups(ctx context.Context, q query.Query, by query.Field, now time.Time) ([]query.Group, error) {
	groups, err := x.groups(ctx, q.Canonical(), by, now)
	if err != nil {
		return nil, fmt.Errorf("group tokens: %w", err)
	}
	return groups, nil
}

func (x *Index) groups(ctx context.Context, q query.Query, by query.Field, now time.Time) ([]query.Group, error) {
	if by != "" && !by.CanGroup() {
		return nil, fmt.Errorf("%w: tokens are not grouped by %q", query.ErrField, by)
	}
	a, err := newAsk(q, now)
	if err != nil {
		return nil, err
	}
	sums := []string{string(query.Ops), string(query.Rejected), string(query.Refunded)}
	p := plan{
		query:  a.query(),
		load:   sums,
		filter: strings.Join(a.filter, " && "),
		group:  &group{by: string(by), sums: sums},
		sort:   []order{{field: string(query.Ops)}},
		limit:  query.MaxGroups,
	}
	if by != "" {
		p.load = append([]string{string(by)}, p.load...)
		p.sort = append(p.sort, order{string(by), true})
	}
	if len(a.filter) > 0 {
		p.load = append([]string{string(query.Token)}, p.load...)
	}
	var replies []map[string]string
	if !a.none {
		if replies, err = x.client.aggregate(ctx, x.alias, p); err != nil {
			return nil, err
		}
	}
	groups := make(map[string]query.Group)
	if by == "" {
		groups[""] = query.Group{}
	}
	for _, reply := range replies {
		value := reply[string(by)]
		if by == query.Status {
			value = cmp.Or(value, query.StatusActive)
		}
		g := groups[value] // active, said and unsaid, is one group
		g.Value = value
		for name, n := range map[string]*int64{
			countOf: &g.Tokens, string(query.Ops): &g.Ops,
			string(query.Rejected): &g.Rejected, string(query.Refunded): &g.Refunded,
		} {
			more, err := figure(reply, name)
			if err != nil {
				return nil, err
			}
			*n += more
		}
		groups[value] = g
	}
	all := make([]query.Group, 0, len(groups))
	for _, g := range groups {
		all = append(all, g)
	}
	slices.SortFunc(all, func(a, b query.Group) int { return cmp.Or(cmp.Compare(b.Ops, a.Ops), cmp.Compare(a.Value, b.Value)) })
	return all, nil
}
