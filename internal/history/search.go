package history

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tallygate/tallygate/internal/query"
)

// Store answers queries from what it keeps for good: everything but a token's
// rate, peak and percent of its quota, which live in Redis only.
var _ query.Source = (*Store)(nil)

// columns are the fields that can be compared and sorted by.
var columns = map[query.Field]string{
	query.Token:    "token",
	query.Ops:      "ops",
	query.Rejected: "rejected",
	query.Refunded: "refunded",
	query.First:    "first_use",
	query.Last:     "last_use",
}

// words are the fields that can be matched and grouped by; absent is ”.
var words = map[query.Field]string{
	query.Policy: "coalesce(a.policy, '')",
	query.Owner:  "coalesce(a.owner, '')",
	query.Status: "coalesce(nullif(a.status, ''), '" + query.StatusActive + "')",
}

const searched = ` FROM tokens t LEFT JOIN token_attributes a ON a.token = t.token`

// order returns the column of a sort, its direction, and the comparison that holds
// for what comes later in it.
func order(s Sort) (column, direction, beyond string, err error) {
	if s.Field == "" {
		s.Field = query.Ops
	}
	if column = columns[s.Field]; column == "" {
		return "", "", "", unkept(s.Field)
	}
	if s.Ascending {
		return column, "ASC", ">", nil
	}
	return column, "DESC", "<", nil
}

func unkept(f query.Field) error {
	return fmt.Errorf("%w: the history does not keep the %s of a token; a search index does", query.ErrField, f)
}

// Search returns a page of the tokens that q asks for, as of now.
func (s *Store) Search(ctx context.Context, q query.Query, now time.Time) (query.Page, error) {
	column, direction, beyond, err := order(q.Sort)
	if err != nil {
		return query.Page{}, err
	}
	where, err := conditions(q, now)
	if err != nil {
		return query.Page{}, err
	}
	if q.After != "" {
		c, err := query.ParseCursor(q.After, q.Sort)
		if err != nil {
			return query.Page{}, err
		}
		if column == "token" {
			where.add("t.token "+beyond+" %s", string(c.Token))
		} else {
			where.add("(t."+column+", t.token) "+beyond+" (%s, %s)", c.Value, string(c.Token))
		}
	}
	limit := q.Limit
	if limit <= 0 {
		limit = query.DefaultLimit
	}
	by := "t." + column + " " + direction
	if column != "token" {
		by += ", t.token " + direction
	}
	rows, err := s.db.QueryContext(ctx, fmt.Sprintf(`SELECT t.token, t.ops, t.rejected, t.refunded, t.first_use, t.last_use,
		%s, %s, %s, coalesce(a.labels, '[]')`+searched+` WHERE %s ORDER BY %s LIMIT %d`,
		words[query.Policy], words[query.Owner], words[query.Status], where, by, limit+1), where.args...)
	if err != nil {
		return query.Page{}, fmt.Errorf("history: search tokens: %w", err)
	}
	found, err := collect(rows, scanRow)
	if err != nil {
		return query.Page{}, fmt.Errorf("history: search tokens: %w", err)
	}
	if len(found) <= limit {
		return query.Page{Rows: found}, nil
	}
	found = found[:limit]
	return query.Page{Rows: found, Next: q.Sort.After(found[limit-1]).String()}, nil
}

func scanRow(rows *sql.Rows) (query.Row, error) {
	var r query.Row
	var labels []byte
	err := rows.Scan(&r.Token, &r.Ops, &r.Rejected, &r.Refunded, &r.First, &r.Last, &r.Policy, &r.Owner, &r.Status, &labels)
	if err == nil {
		err = json.Unmarshal(labels, &r.Labels)
	}
	if len(r.Labels) == 0 {
		r.Labels = nil
	}
	return r, err
}

// Groups adds up the tokens that q asks for by policy, owner, status or nothing.
func (s *Store) Groups(ctx context.Context, q query.Query, by query.Field, now time.Time) ([]query.Group, error) {
	value := words[by]
	if by == "" {
		value = "''"
	}
	if value == "" {
		return nil, fmt.Errorf("%w: tokens can be grouped by policy, owner and status", query.ErrField)
	}
	where, err := conditions(q, now)
	if err != nil {
		return nil, err
	}
	group := fmt.Sprintf(" GROUP BY 1 ORDER BY 3 DESC, 1 LIMIT %d", query.MaxGroups)
	if by == "" {
		group = "" // one group, though it be of no tokens
	}
	rows, err := s.db.QueryContext(ctx, fmt.Sprintf(`SELECT %s, count(*), CAST(coalesce(sum(t.ops), 0) AS bigint),
		CAST(coalesce(sum(t.rejected), 0) AS bigint), CAST(coalesce(sum(t.refunded), 0) AS bigint)`+searched+` WHERE %s%s`,
		value, where, group), where.args...)
	if err != nil {
		return nil, fmt.Errorf("history: add up tokens: %w", err)
	}
	groups, err := collect(rows, func(rows *sql.Rows) (g query.Group, err error) {
		return g, rows.Scan(&g.Value, &g.Tokens, &g.Ops, &g.Rejected, &g.Refunded)
	})
	if err != nil {
		return nil, fmt.Errorf("history: add up tokens: %w", err)
	}
	return groups, nil
}

// clause is a condition that is built bit by bit.
type clause struct {
	all  []string
	args []any
}

// add adds a condition that holds beside the others; each %s in it is a value.
func (c *clause) add(condition string, values ...any) {
	marks := make([]any, len(values))
	for i, v := range values {
		c.args = append(c.args, v)
		marks[i] = fmt.Sprintf("$%d", len(c.args))
	}
	c.all = append(c.all, fmt.Sprintf(condition, marks...))
}

// String returns the condition in SQL.
func (c *clause) String() string {
	if len(c.all) == 0 {
		return "true"
	}
	return strings.Join(c.all, " AND ")
}

// conditions returns what q asks of a token.
func conditions(q query.Query, now time.Time) (*clause, error) {
	c := &clause{}
	for _, m := range q.Match {
		if err := c.match(m); err != nil {
			return nil, err
		}
	}
	for _, r := range q.Ranges(now) {
		column := columns[r.Field]
		if column == "" {
			return nil, unkept(r.Field)
		}
		c.add("t."+column+" BETWEEN %s AND %s", r.Min, r.Max)
	}
	return c, nil
}

func (c *clause) match(m query.Match) error {
	var either clause // of one value
	either.args = c.args
	for _, v := range m.Values {
		switch {
		case m.Field == query.Token && m.Prefix:
			either.add("t.token >= %s", v)
			if end, ok := afterPrefix(v); ok {
				first := either.all[len(either.all)-1]
				either.all = either.all[:len(either.all)-1]
				either.add("("+first+" AND t.token < %s)", end)
			}
		case m.Field == query.Token:
			either.add("t.token = %s", v)
		case m.Field == query.Label:
			either.add("EXISTS (SELECT 1 FROM token_labels l WHERE l.token = t.token AND l.label = %s)", v)
		case words[m.Field] == "":
			return unkept(m.Field)
		case v != "": // absent matches nothing
			either.add(words[m.Field]+" = %s", v)
		}
	}
	c.args = either.args
	condition := "false"
	if len(either.all) > 0 {
		condition = "(" + strings.Join(either.all, " OR ") + ")"
	}
	if m.Not {
		condition = "NOT " + condition
	}
	c.all = append(c.all, condition)
	return nil
}

// afterPrefix returns the least text that is greater, by its bytes, than all that
// begin with prefix; not ok when there is none.
func afterPrefix(prefix string) (end string, ok bool) {
	for prefix != "" {
		last, size := utf8.DecodeLastRuneInString(prefix)
		prefix = prefix[:len(prefix)-size]
		switch last {
		case utf8.MaxRune:
			continue // no greater one: raise the one before
		case 0xD7FF:
			return prefix + "\uE000", true // surrogates are no text
		default:
			return prefix + string(last+1), true
		}
	}
	return "", false
}
