package search

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/tallygate/tallygate/internal/query"
)

// ask is a query on its way to RediSearch.
type ask struct {
	words  []string // clauses of the index's language that matches became
	ranges []query.Range
	filter []string // expressions over the token, for what the index cannot say
	none   bool     // nothing can hold all of it
}

// newAsk translates what q asks for, but for its order and page.
//
// A token's beginning is compared outside of the index: asked for by prefix,
// RediSearch silently stops at the 200th word (MAXPREFIXEXPANSIONS), and finds
// nothing by a single letter.
func newAsk(q query.Query, now time.Time) (ask, error) {
	a := ask{ranges: q.Ranges(now)}
	for _, r := range a.ranges {
		a.none = a.none || r.Min > r.Max
	}
	for _, m := range q.Match {
		switch {
		case m.Field.Kind() != query.Word || len(m.Values) == 0:
			return ask{}, fmt.Errorf("%w: %q is matched with %d words", query.ErrField, m.Field, len(m.Values))
		case m.Prefix && m.Field != query.Token:
			return ask{}, fmt.Errorf("%w: the beginning of %s", query.ErrField, m.Field)
		case m.Field == query.Status:
			a.status(m)
		case m.Prefix:
			begins := make([]string, len(m.Values))
			for i, v := range m.Values {
				begins[i] = "startswith(@token," + literal(v) + ")"
			}
			a.filter = append(a.filter, not(m.Not, "!", "("+strings.Join(begins, " || ")+")"))
		default:
			a.words = append(a.words, not(m.Not, "-", tags(m.Field, m.Values)))
		}
	}
	return a, nil
}

func not(yes bool, sign, s string) string {
	if yes {
		return sign + s
	}
	return s
}

// status adds a match of the status: a hash without one is active.
func (a *ask) status(m query.Match) {
	var active, blocked bool
	for _, v := range m.Values {
		active = active || v == query.StatusActive
		blocked = blocked || v == query.StatusBlocked
	}
	if m.Not {
		active, blocked = !active, !blocked
	}
	isBlocked := tags(query.Status, []string{query.StatusBlocked})
	switch {
	case active && !blocked:
		a.words = append(a.words, "-"+isBlocked)
	case blocked && !active:
		a.words = append(a.words, isBlocked)
	case !active:
		a.none = true
	}
}

// within returns a with r instead of the range of its field.
func (a ask) within(r query.Range) ask {
	ranges := []query.Range{r}
	for _, other := range a.ranges {
		if other.Field != r.Field {
			ranges = append(ranges, other)
		}
	}
	a.ranges = ranges
	return a
}

// rangeOf returns what a allows a figure or a time.
func (a ask) rangeOf(f query.Field) query.Range {
	for _, r := range a.ranges {
		if r.Field == f {
			return r
		}
	}
	return query.Range{Field: f, Min: 0, Max: query.MaxFigure}
}

// after limits a to what comes behind a cursor.
func (a ask) after(c query.Cursor, s query.Sort) ask {
	beyond := "<"
	if s.Ascending {
		beyond = ">"
	}
	token := fmt.Sprintf("@token %s %s", beyond, literal(string(c.Token)))
	if s.Field == query.Token {
		a.filter = append(a.filter[:len(a.filter):len(a.filter)], token)
		return a
	}
	a.filter = append(a.filter[:len(a.filter):len(a.filter)],
		fmt.Sprintf("(@%[1]s %[2]s %[3]d || (@%[1]s == %[3]d && %[4]s))", s.Field, beyond, c.Value, token))
	r := a.rangeOf(s.Field)
	if s.Ascending {
		r.Min = max(r.Min, c.Value)
	} else {
		r.Max = min(r.Max, c.Value)
	}
	a = a.within(r)
	a.none = a.none || r.Min > r.Max
	return a
}

// query returns the question in the index's language.
func (a ask) query() string {
	clauses := a.words[:len(a.words):len(a.words)]
	for _, r := range a.ranges {
		clauses = append(clauses, numbers(r)...)
	}
	if len(clauses) == 0 {
		return "*"
	}
	return strings.Join(clauses, " ")
}

// numbers returns the clause of a range; none for one that leaves nothing out.
func numbers(r query.Range) []string {
	low, high := "-inf", "+inf"
	if r.Min > 0 {
		low = strconv.FormatInt(r.Min, 10)
	}
	if r.Max < query.MaxFigure {
		high = strconv.FormatInt(r.Max, 10)
	}
	if low == "-inf" && high == "+inf" {
		return nil
	}
	return []string{"@" + string(r.Field) + ":[" + low + " " + high + "]"}
}

// tags returns the clause that a field is one of some words.
func tags(f query.Field, words []string) string {
	escaped := make([]string, len(words))
	for i, w := range words {
		escaped[i] = escape(w)
	}
	return "@" + string(f) + ":{" + strings.Join(escaped, "|") + "}"
}

// escape returns a word as it stands in a tag clause: a backslash before every
// ASCII character that is no letter and no digit.
func escape(word string) string {
	var b strings.Builder
	for i := range len(word) {
		c := word[i]
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c >= 0x80) {
			b.WriteByte('\\')
		}
		b.WriteByte(c)
	}
	return b.String()
}

// literal returns a text as it stands in an expression.
func literal(text string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text) + `"`
}
