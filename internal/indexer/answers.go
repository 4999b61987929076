package indexer

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/tallygate/tallygate/internal/history"
	"github.com/tallygate/tallygate/internal/query"
	"github.com/tallygate/tallygate/internal/token"
)

// TokenAnswer is a token's account as the API gives it.
type TokenAnswer struct {
	Token    string    `json:"token"` // as callers present it
	Ops      int64     `json:"ops"`   // admitted units
	Rejected int64     `json:"rejected"`
	Refunded int64     `json:"refunded"`
	First    time.Time `json:"first,omitzero"` // absent when nothing was ever admitted
	Last     time.Time `json:"last,omitzero"`
	Rate     int64     `json:"rate,omitempty"`    // admitted units in the latest minute of use
	Peak     int64     `json:"peak,omitempty"`    // admitted units in the busiest minute
	Percent  int64     `json:"percent,omitempty"` // of the quota that is used up most
	Policy   string    `json:"policy,omitempty"`
	Owner    string    `json:"owner,omitempty"`
	Status   string    `json:"status,omitempty"`
	Labels   []string  `json:"labels,omitempty"`
}

// TokensAnswer is a page of tokens.
type TokensAnswer struct {
	Tokens []TokenAnswer `json:"tokens"`
	Next   string        `json:"next,omitempty"` // cursor of the next page
}

// UsageAnswer is usage over a span, of a token or of all.
type UsageAnswer struct {
	Token  string        `json:"token,omitempty"`
	StepS  int64         `json:"step_s"` // seconds
	Points []PointAnswer `json:"points"`
}

// PointAnswer is what was used in one step.
type PointAnswer struct {
	Start    time.Time `json:"start"`
	Admitted int64     `json:"admitted"` // units
	Rejected int64     `json:"rejected"`
	Refunded int64     `json:"refunded"`
}

// GroupsAnswer is the sums of tokens by a field.
type GroupsAnswer struct {
	Groups []GroupAnswer `json:"groups"`
}

// GroupAnswer is the sum of the tokens that have one value of the field.
type GroupAnswer struct {
	Value    string `json:"value"` // "" for tokens without the field
	Tokens   int64  `json:"tokens"`
	Ops      int64  `json:"ops"`
	Rejected int64  `json:"rejected"`
	Refunded int64  `json:"refunded"`
}

// EventsAnswer is a page of audit events, the last that arrived first.
type EventsAnswer struct {
	Events []EventAnswer `json:"events"`
	Next   string        `json:"next,omitempty"`
}

// EventAnswer is an audit event.
type EventAnswer struct {
	Seq    int64           `json:"seq"`
	ID     string          `json:"id"`
	Token  string          `json:"token,omitempty"`
	At     time.Time       `json:"at"`
	Kind   string          `json:"kind"`
	Actor  string          `json:"actor,omitempty"`
	Reason string          `json:"reason,omitempty"`
	Before json.RawMessage `json:"before,omitempty"`
	After  json.RawMessage `json:"after,omitempty"`
	Erased bool            `json:"erased,omitempty"`
}

func (a *api) tokens(r *http.Request) (any, error) {
	p, err := parameters(r, "q", "sort", "limit", "cursor")
	if err != nil {
		return nil, err
	}
	q, err := p.query("q")
	if err != nil {
		return nil, err
	}
	if p.Has("cursor") {
		q.After = p.Get("cursor")
	}
	if q.Limit, err = p.number("limit", q.Limit, 1, query.MaxLimit); err != nil {
		return nil, err
	}
	if p.Has("sort") {
		if q.Sort, err = query.ParseSort(p.Get("sort")); err != nil {
			return nil, badParameter("sort", err)
		}
	}
	page, err := a.opts.Search.Search(r.Context(), q, a.now())
	if err != nil {
		return nil, badQuery(err)
	}
	answer := TokensAnswer{Tokens: make([]TokenAnswer, len(page.Rows)), Next: page.Next}
	for i, row := range page.Rows {
		answer.Tokens[i] = rowAnswer(row)
	}
	return answer, nil
}

// badQuery says which parameter a source did not like.
func badQuery(err error) error {
	switch {
	case errors.Is(err, query.ErrCursor):
		return badParameter("cursor", err)
	case errors.Is(err, query.ErrSort):
		return badParameter("sort", err)
	case errors.Is(err, query.ErrField):
		return badParameter("q", err)
	}
	return err
}

func rowAnswer(r query.Row) TokenAnswer {
	return TokenAnswer{
		Token: r.Token.Text(), Ops: r.Ops, Rejected: r.Rejected, Refunded: r.Refunded,
		First: unixTime(r.First), Last: unixTime(r.Last), Rate: r.Rate, Peak: r.Peak, Percent: r.Percent,
		Policy: r.Policy, Owner: r.Owner, Status: r.Status, Labels: r.Labels,
	}
}

func tokenAnswer(t history.Token) TokenAnswer {
	return TokenAnswer{
		Token: t.ID.Text(), Ops: t.Ops, Rejected: t.Rejected, Refunded: t.Refunded,
		First: unixTime(t.First), Last: unixTime(t.Last),
	}
}

// unixTime returns the zero time for 0.
func unixTime(seconds int64) time.Time {
	if seconds == 0 {
		return time.Time{}
	}
	return time.Unix(seconds, 0).UTC()
}

func (a *api) token(r *http.Request) (any, error) {
	if _, err := parameters(r); err != nil {
		return nil, err
	}
	id, err := tokenOf(r)
	if err != nil {
		return nil, err
	}
	t, err := a.reader.Token(r.Context(), id)
	if err != nil {
		return nil, err
	}
	return tokenAnswer(t), nil
}

// tokenOf returns the token that the path names; "" when it names none.
func tokenOf(r *http.Request) (token.ID, error) {
	if !strings.Contains(r.Pattern, "{token}") {
		return "", nil
	}
	id, err := token.Parse(r.PathValue("token"))
	if err != nil {
		return "", badParameter("token", err)
	}
	return id, nil
}

func (a *api) usage(r *http.Request) (any, error) {
	id, err := tokenOf(r)
	if err != nil {
		return nil, err
	}
	return a.points(r, id, func(span history.Span, resources []string) ([]history.Point, error) {
		return a.reader.Usage(r.Context(), id, span, resources...)
	})
}

func (a *api) totalUsage(r *http.Request) (any, error) {
	return a.points(r, "", func(span history.Span, resources []string) ([]history.Point, error) {
		return a.reader.TotalUsage(r.Context(), span, resources...)
	})
}

func (a *api) points(r *http.Request, id token.ID, read func(history.Span, []string) ([]history.Point, error)) (any, error) {
	p, err := parameters(r, "from", "to", "since", "step", "resource")
	if err != nil {
		return nil, err
	}
	var span history.Span
	if span.From, span.To, err = p.span(a.now()); err != nil {
		return nil, err
	}
	if span.Step, err = p.duration("step", time.Minute); err != nil {
		return nil, err
	}
	resources, err := p.resources("resource")
	if err != nil {
		return nil, err
	}
	points, err := read(span, resources)
	if errors.Is(err, history.ErrSpan) {
		return nil, badParameter("step", err)
	}
	if err != nil {
		return nil, err
	}
	answer := UsageAnswer{Token: id.Text(), StepS: int64(span.Step / time.Second), Points: make([]PointAnswer, len(points))}
	for i, pt := range points {
		answer.Points[i] = PointAnswer{Start: pt.Start, Admitted: pt.Admitted, Rejected: pt.Rejected, Refunded: pt.Refunded}
	}
	return answer, nil
}

func (a *api) top(r *http.Request) (any, error) {
	p, err := parameters(r, "by", "from", "to", "since", "limit", "resource")
	if err != nil {
		return nil, err
	}
	from, to, err := p.span(a.now())
	if err != nil {
		return nil, err
	}
	by := history.Sort{}
	if p.Has("by") {
		if by, err = history.ParseSort("-" + p.Get("by")); err != nil {
			return nil, badParameter("by", err)
		}
	}
	limit, err := p.number("limit", 10, 1, history.MaxPage)
	if err != nil {
		return nil, err
	}
	resources, err := p.resources("resource")
	if err != nil {
		return nil, err
	}
	top, err := a.reader.Top(r.Context(), from, to, by, limit, resources...)
	if errors.Is(err, history.ErrSpan) {
		return nil, badParameter("from", err)
	}
	if err != nil {
		return nil, err
	}
	answer := TokensAnswer{Tokens: make([]TokenAnswer, len(top))}
	for i, t := range top {
		answer.Tokens[i] = tokenAnswer(t)
	}
	return answer, nil
}

func (a *api) groups(r *http.Request) (any, error) {
	p, err := parameters(r, "by", "q")
	if err != nil {
		return nil, err
	}
	q, err := p.query("q")
	if err != nil {
		return nil, err
	}
	by := query.Field(p.Get("by"))
	if by != "" && !by.CanGroup() {
		return nil, badParameter("by", fmt.Errorf("%.32q is none of policy, owner, status; leave it out for the sum of all", string(by)))
	}
	groups, err := a.opts.Search.Groups(r.Context(), q, by, a.now())
	if err != nil {
		return nil, badQuery(err)
	}
	answer := GroupsAnswer{Groups: make([]GroupAnswer, len(groups))}
	for i, g := range groups {
		answer.Groups[i] = GroupAnswer(g)
	}
	return answer, nil
}

func (a *api) events(r *http.Request) (any, error) {
	p, err := parameters(r, "kind", "limit", "cursor")
	if err != nil {
		return nil, err
	}
	page := history.EventPage{Kind: p.Get("kind"), After: p.Get("cursor")}
	if page.Token, err = tokenOf(r); err != nil {
		return nil, err
	}
	if page.Limit, err = p.number("limit", 50, 1, history.MaxPage); err != nil {
		return nil, err
	}
	events, next, err := a.reader.Events(r.Context(), page)
	if err != nil {
		return nil, badQuery(err)
	}
	answer := EventsAnswer{Events: make([]EventAnswer, len(events)), Next: next}
	for i, e := range events {
		answer.Events[i] = EventAnswer{
			Seq: e.Seq, ID: e.ID, Token: e.Token.Text(), At: time.UnixMilli(e.At).UTC(), Kind: e.Kind,
			Actor: e.Actor, Reason: e.Reason, Before: e.Before, After: e.After, Erased: e.Erased,
		}
	}
	return answer, nil
}
