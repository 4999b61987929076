package querytest

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/tallygate/tallygate/internal/query"
)

// Search is what a source that holds rows answers, in the plainest way.
func Search(rows []query.Row, q query.Query, now time.Time) (query.Page, error) {
	q = q.Canonical()
	found := filter(rows, q, now)
	slices.SortFunc(found, func(a, b query.Row) int { return order(q.Sort, a, b) })
	if q.After != "" {
		c, err := query.ParseCursor(q.After, q.Sort)
		if err != nil {
			return query.Page{}, err
		}
		found = slices.DeleteFunc(found, func(r query.Row) bool {
			here := cmp.Or(cmp.Compare(r.Figure(q.Sort.Field), c.Value), cmp.Compare(r.Token, c.Token))
			return here == 0 || (here > 0) != q.Sort.Ascending
		})
	}
	if len(found) <= q.Limit {
		return query.Page{Rows: found}, nil
	}
	found = found[:q.Limit]
	return query.Page{Rows: found, Next: q.Sort.After(found[q.Limit-1]).String()}, nil
}

// Groups is the counterpart of Search.
func Groups(rows []query.Row, q query.Query, by query.Field, now time.Time) []query.Group {
	groups := map[string]query.Group{}
	if by == "" {
		groups[""] = query.Group{}
	}
	for _, r := range filter(rows, q, now) {
		value := ""
		if by != "" {
			value = strings.Join(words(r, by), "")
		}
		g := groups[value]
		g.Value = value
		g.Tokens++
		g.Ops += r.Ops
		g.Rejected += r.Rejected
		g.Refunded += r.Refunded
		groups[value] = g
	}
	var all []query.Group
	for _, g := range groups {
		all = append(all, g)
	}
	slices.SortFunc(all, func(a, b query.Group) int {
		return cmp.Or(cmp.Compare(b.Ops, a.Ops), cmp.Compare(a.Value, b.Value))
	})
	return all[:min(len(all), query.MaxGroups)]
}

func filter(rows []query.Row, q query.Query, now time.Time) []query.Row {
	var found []query.Row
	ranges := q.Ranges(now)
	for _, r := range rows {
		ok := true
		for _, m := range q.Match {
			ok = ok && matches(m, words(r, m.Field))
		}
		for _, bounds := range ranges {
			n := r.Figure(bounds.Field)
			ok = ok && bounds.Min <= n && n <= bounds.Max
		}
		if ok {
			found = append(found, r)
		}
	}
	return found
}

func matches(m query.Match, words []string) bool {
	found := slices.ContainsFunc(words, func(word string) bool {
		return slices.ContainsFunc(m.Values, func(v string) bool {
			return word == v || m.Prefix && strings.HasPrefix(word, v)
		})
	})
	return found != m.Not
}

// words returns what r has of a field that holds words.
func words(r query.Row, f query.Field) []string {
	word := ""
	switch f {
	case query.Token:
		word = string(r.Token)
	case query.Policy:
		word = r.Policy
	case query.Owner:
		word = r.Owner
	case query.Status:
		word = r.Status
	case query.Label:
		return r.Labels
	}
	if word == "" {
		return nil
	}
	return []string{word}
}

func order(s query.Sort, a, b query.Row) int {
	c := cmp.Or(cmp.Compare(a.Figure(s.Field), b.Figure(s.Field)), cmp.Compare(a.Token, b.Token))
	if !s.Ascending {
		return -c
	}
	return c
}
