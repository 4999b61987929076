package query

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/tallygate/tallygate/internal/token"
)

// What a query may hold at most.
const (
	MaxText   = 4096 // bytes
	MaxTerms  = 32
	MaxValues = 64  // of one term
	MaxWord   = 256 // bytes of a policy, owner or label
)

// Error is a query that cannot be understood.
type Error struct {
	Text    string // the query
	At      int    // byte offset of the character that is to blame; len(Text) is its end
	Problem string // what is wrong and what would be right
}

// Error returns one line: the problem and the character, counted from 1.
func (e *Error) Error() string {
	return fmt.Sprintf("invalid query at character %d: %s", utf8.RuneCountInString(e.Text[:e.At])+1, e.Problem)
}

// Caret returns two lines: the query, and a caret below the character.
func (e *Error) Caret() string {
	line := strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) || unicode.IsControl(r) {
			return ' '
		}
		return r
	}, e.Text)
	return line + "\n" + strings.Repeat(" ", utf8.RuneCountInString(e.Text[:e.At])) + "^"
}

// Parse parses a query in the language; the result is canonical. The empty text
// asks for all tokens. The error is an *Error.
func Parse(text string) (Query, error) {
	p := &parser{text: text}
	var q Query
	err := p.query(&q)
	if err != nil {
		return Query{}, err
	}
	return q.Canonical(), nil
}

// parser reads a query from left to right.
type parser struct {
	text string
	at   int // byte offset of what comes next
}

func (p *parser) fail(at int, format string, args ...any) error {
	return &Error{Text: p.text, At: min(at, len(p.text)), Problem: fmt.Sprintf(format, args...)}
}

func (p *parser) query(q *Query) error {
	if !utf8.ValidString(p.text) {
		at := strings.IndexRune(p.text, utf8.RuneError) // the first broken byte, or a replacement character before it
		return p.fail(max(at, 0), "this is not valid UTF-8")
	}
	if len(p.text) > MaxText {
		return p.fail(MaxText, "the query has %d bytes, at most %d are allowed", len(p.text), MaxText)
	}
	sorted := false
	for terms := 1; ; terms++ {
		p.skipSpace()
		start := p.at
		if start == len(p.text) {
			return nil
		}
		if terms > MaxTerms {
			return p.fail(start, "a query has at most %d terms", MaxTerms)
		}
		not := p.take("-")
		name := p.name()
		op := p.op()
		switch f := Field(name); {
		case op == "":
			p.at = start
			if err := p.bare(q); err != nil {
				return err
			}
		case name == "sort":
			if not || sorted {
				return p.fail(start, "one order is enough, for example sort:-ops")
			}
			sorted = true
			at := p.at
			s, err := ParseSort(p.raw())
			if err != nil || op != ":" {
				return p.fail(at, "sort takes one of %s after a colon, with a minus sign for the highest first", names(Field.CanSort))
			}
			q.Sort = s
		case f.Kind() == None:
			return p.fail(start, "there is no field %.32q, but %s and sort; a token with such a character is written in quotes", name, names(func(Field) bool { return true }))
		case f.Kind() == Word:
			m := Match{Field: f, Not: not}
			if err := p.words(&m, op); err != nil {
				return err
			}
			q.Match = append(q.Match, m)
		case not:
			return p.fail(start, "a minus sign goes with %s; turn the comparison of %s round instead", names(func(f Field) bool { return f.Kind() == Word }), f)
		default:
			if err := p.compare(q, f, op); err != nil {
				return err
			}
		}
	}
}

// bare reads a word that names no field: the beginning of a token.
func (p *parser) bare(q *Query) error {
	m := Match{Field: Token, Prefix: true, Not: p.take("-")}
	at := p.at
	text, _, err := p.word()
	if err != nil {
		return err
	}
	if err := p.end(); err != nil {
		return err
	}
	id, err := token.Parse(text)
	if err != nil {
		return p.fail(at, "%v", err)
	}
	m.Values = []string{string(id)}
	q.Match = append(q.Match, m)
	return nil
}

// words reads the values of a match.
func (p *parser) words(m *Match, op string) error {
	if op != ":" && op != string(Equal) {
		return p.fail(p.at-len(op), "%s holds words: %s:value, or several with commas between them", m.Field, m.Field)
	}
	for {
		at := p.at
		text, prefix, err := p.word()
		if err != nil {
			return err
		}
		value, err := p.value(m.Field, at, text)
		if err != nil {
			return err
		}
		switch {
		case prefix && m.Field != Token:
			return p.fail(p.at-1, "only tokens can be asked for by their beginning; an asterisk that is part of a word stands in quotes")
		case len(m.Values) > 0 && prefix != m.Prefix:
			return p.fail(at, "with commas either all values end with an asterisk or none does")
		case len(m.Values) == MaxValues:
			return p.fail(at, "a term has at most %d values", MaxValues)
		}
		m.Prefix = prefix
		m.Values = append(m.Values, value)
		if !p.take(",") {
			return p.end()
		}
	}
}

// value returns a word in the form in which it is kept.
func (p *parser) value(f Field, at int, text string) (string, error) {
	switch {
	case f == Token:
		id, err := token.Parse(text)
		if err != nil {
			return "", p.fail(at, "%v", err)
		}
		return string(id), nil
	case f == Status && text != StatusActive && text != StatusBlocked:
		return "", p.fail(at, "status is %s or %s", StatusActive, StatusBlocked)
	case len(text) > MaxWord:
		return "", p.fail(at, "%s has at most %d bytes", f, MaxWord)
	case strings.TrimSpace(text) != text || strings.ContainsFunc(text, unicode.IsControl):
		return "", p.fail(at, "%s has no control characters, and no blanks at its ends", f)
	}
	return text, nil
}

// word reads a word, in quotes or not, and an asterisk after it.
func (p *parser) word() (text string, prefix bool, err error) {
	start := p.at
	if p.take(`"`) {
		if text, err = p.quoted(start); err != nil {
			return "", false, err
		}
	} else {
		rest := p.text[p.at:]
		n := strings.IndexFunc(rest, needsQuotes)
		if n < 0 {
			n = len(rest)
		}
		text = rest[:n]
		p.at += n
	}
	if text == "" {
		return "", false, p.fail(start, "a word is missing here")
	}
	return text, p.take("*"), nil
}

// quoted reads the rest of a word whose opening quote stood at start.
func (p *parser) quoted(start int) (string, error) {
	var b strings.Builder
	for p.at < len(p.text) {
		c := p.text[p.at]
		p.at++
		switch {
		case c == '"':
			return b.String(), nil
		case c == '\\':
			if p.at == len(p.text) || p.text[p.at] != '"' && p.text[p.at] != '\\' {
				return "", p.fail(p.at-1, `in quotes a backslash stands before a quote or another backslash: \" or \\`)
			}
			b.WriteByte(p.text[p.at])
			p.at++
		default:
			b.WriteByte(c)
		}
	}
	return "", p.fail(start, "this quote is not closed")
}

// end checks that a term ends here.
func (p *parser) end() error {
	if r, _ := utf8.DecodeRuneInString(p.text[p.at:]); p.at < len(p.text) && !unicode.IsSpace(r) {
		return p.fail(p.at, "a blank should follow here; a word with such a character is written in quotes")
	}
	return nil
}

// compare reads what a figure or a time is compared with.
func (p *parser) compare(q *Query, f Field, op string) error {
	at := p.at
	text := p.raw()
	low, high, isRange := strings.Cut(text, "..")
	if isRange && op != ":" && op != string(Equal) {
		return p.fail(at, "a range stands after a colon: %s:%s", f, text)
	}
	from, err := p.operand(f, at, low)
	if err != nil {
		return err
	}
	to := from
	if isRange {
		if to, err = p.operand(f, at+len(low)+len(".."), high); err != nil {
			return err
		}
		if to.age != from.age {
			return p.fail(at, "a range lies between two times or between two ages")
		}
	}
	c := Compare{Field: f, Op: Op(op), N: from.n, Age: from.age}
	switch {
	case op != ":" && op != string(Equal):
		q.Compare = append(q.Compare, c)
		return nil
	case !isRange && from.age:
		return p.fail(at, "%s is exactly so long ago for a second only; write %s<%s for within, %s>%s for not since", f, f, text, f, text)
	case !isRange && !to.day:
		c.Op = Equal
		q.Compare = append(q.Compare, c)
		return nil
	}
	c.Op = AtLeast
	end := Compare{Field: f, Op: AtMost, N: to.n, Age: to.age}
	if to.day { // the whole day
		end.Op, end.N = Less, to.n+86400
	}
	q.Compare = append(q.Compare, c, end)
	return nil
}

// operand is one side of a comparison.
type operand struct {
	n   int64
	age bool
	day bool // a date without a time: its first second
}

func (p *parser) operand(f Field, at int, text string) (operand, error) {
	if f.Kind() == Time {
		return p.moment(f, at, text)
	}
	digits, factor := text, int64(1)
	switch {
	case f == Percent:
		digits = strings.TrimSuffix(digits, "%")
	case strings.HasSuffix(text, "k"):
		digits, factor = text[:len(text)-1], 1000
	case strings.HasSuffix(text, "M"):
		digits, factor = text[:len(text)-1], 1_000_000
	case strings.HasSuffix(text, "G"):
		digits, factor = text[:len(text)-1], 1_000_000_000
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || n > uint64(MaxFigure/factor) {
		return operand{}, p.fail(at, "%s is compared with a whole number from 0 to %d, such as 250, 10k or 3M", f, int64(MaxFigure))
	}
	return operand{n: int64(n) * factor}, nil
}

func (p *parser) moment(f Field, at int, text string) (operand, error) {
	if seconds, ok := parseAge(text); ok {
		return operand{n: seconds, age: true}, nil
	}
	if t, err := time.Parse(time.DateOnly, text); err == nil && t.Unix() >= 0 {
		return operand{n: t.Unix(), day: true}, nil
	}
	if t, err := time.Parse(time.RFC3339, text); err == nil && t.Unix() >= 0 {
		return operand{n: t.Unix()}, nil
	}
	return operand{}, p.fail(at, "%s is compared with an age such as 90m, 36h or 7d, a date such as 2026-11-01, or a time such as 2026-11-01T12:00:00Z", f)
}

// maxAge is the longest age, in seconds: 1000 years.
const maxAge = 365_000 * 86400

// parseAge reads weeks, days, hours, minutes and seconds, such as 1d12h.
func parseAge(text string) (seconds int64, ok bool) {
	units := "wdhms"
	for text != "" {
		digits := len(text) - len(strings.TrimLeft(text, "0123456789"))
		if digits == 0 || digits == len(text) {
			return 0, false
		}
		u := strings.IndexByte(units, text[digits])
		n, err := strconv.ParseInt(text[:digits], 10, 64)
		if err != nil || n > maxAge || u < 0 {
			return 0, false
		}
		seconds += n * map[byte]int64{'w': 7 * 86400, 'd': 86400, 'h': 3600, 'm': 60, 's': 1}[units[u]]
		if seconds > maxAge {
			return 0, false
		}
		units, text, ok = units[u+1:], text[digits+1:], true
	}
	return seconds, ok
}

func (p *parser) skipSpace() {
	p.at += len(p.text[p.at:]) - len(strings.TrimLeftFunc(p.text[p.at:], unicode.IsSpace))
}

// take reads prefix if it comes next.
func (p *parser) take(prefix string) bool {
	if strings.HasPrefix(p.text[p.at:], prefix) {
		p.at += len(prefix)
		return true
	}
	return false
}

// name reads letters.
func (p *parser) name() string {
	start := p.at
	for p.at < len(p.text) && ('a' <= p.text[p.at]|0x20 && p.text[p.at]|0x20 <= 'z') {
		p.at++
	}
	return p.text[start:p.at]
}

// op reads an operator; "" when none comes next.
func (p *parser) op() string {
	for _, op := range []string{":", string(AtMost), string(AtLeast), string(Less), string(More), string(Equal)} {
		if p.take(op) {
			return op
		}
	}
	return ""
}

// raw reads up to the next blank.
func (p *parser) raw() string {
	rest := p.text[p.at:]
	n := strings.IndexFunc(rest, unicode.IsSpace)
	if n < 0 {
		n = len(rest)
	}
	p.at += n
	return rest[:n]
}
