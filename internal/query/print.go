package query

import (
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/tallygate/tallygate/internal/token"
)

// String returns the canonical text of q, which Parse parses into the same
// filters and order; the page is no part of it.
func (q Query) String() string {
	q = q.Canonical()
	var terms []string
	for _, m := range q.Match {
		terms = append(terms, m.String())
	}
	for _, c := range q.Compare {
		terms = append(terms, c.String())
	}
	if q.Sort != (Sort{Field: Ops}) {
		terms = append(terms, "sort:"+q.Sort.String())
	}
	return strings.Join(terms, " ")
}

// String returns m as one term of the language.
func (m Match) String() string {
	var b strings.Builder
	if m.Not {
		b.WriteByte('-')
	}
	b.WriteString(string(m.Field))
	b.WriteByte(':')
	for i, v := range m.Values {
		if i > 0 {
			b.WriteByte(',')
		}
		if m.Field == Token {
			v = token.ID(v).Text()
		}
		b.WriteString(quote(v))
		if m.Prefix {
			b.WriteByte('*')
		}
	}
	return b.String()
}

// String returns c as one term of the language.
func (c Compare) String() string {
	value := strconv.FormatInt(c.N, 10)
	switch {
	case c.Age:
		value = printAge(c.N)
	case c.Field.Kind() == Time:
		value = time.Unix(c.N, 0).UTC().Format(time.RFC3339)
	}
	return string(c.Field) + string(c.Op) + value
}

// printAge writes seconds in the largest units that they fill.
func printAge(seconds int64) string {
	if seconds == 0 {
		return "0s"
	}
	var b strings.Builder
	for _, u := range []struct {
		name    string
		seconds int64
	}{{"d", 86400}, {"h", 3600}, {"m", 60}, {"s", 1}} {
		if n := seconds / u.seconds; n > 0 {
			b.WriteString(strconv.FormatInt(n, 10))
			b.WriteString(u.name)
			seconds %= u.seconds
		}
	}
	return b.String()
}

// quote returns a word as it is written in a query.
func quote(word string) string {
	if word != "" && strings.IndexFunc(word, needsQuotes) < 0 {
		return word
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(word) + `"`
}

func needsQuotes(r rune) bool {
	return r == '"' || r == ',' || r == '*' || r == '\\' || unicode.IsSpace(r)
}
