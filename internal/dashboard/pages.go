package dashboard

import (
	"cmp"
	"slices"

	"github.com/tallygate/tallygate/internal/config"
	"github.com/tallygate/tallygate/internal/dashboard/chart"
	"github.com/tallygate/tallygate/internal/history"
	"github.com/tallygate/tallygate/internal/token"
	"github.com/tallygate/tallygate/internal/usage"
)

// order is a sort that is known to parse.
func order(s string) history.Sort {
	o, err := history.ParseSort(s)
	if err != nil {
		panic(err)
	}
	return o
}

var (
	mostAdmitted = order("-ops")
	mostRejected = order("-rejected")
)

const (
	topTokens    = 10
	defaultLimit = 50
)

type overviewView struct {
	Figures  *figures
	Admitted []history.Token // tokens by admitted units in the span
	Rejected []history.Token // and by rejected
	Ever     usage.Totals
}

func (d *Dashboard) overview(r *request) (*view, error) {
	ctx := r.Context()
	f, err := d.totalFigures(r)
	if err != nil {
		return nil, err
	}
	o := overviewView{Figures: f}
	only, err := resources(r.URL.Query())
	if err != nil {
		return nil, err
	}
	if o.Admitted, err = d.History.Top(ctx, f.Span.From, f.Span.To, mostAdmitted, topTokens, only...); err != nil {
		return nil, err
	}
	if o.Rejected, err = d.History.Top(ctx, f.Span.From, f.Span.To, mostRejected, topTokens, only...); err != nil {
		return nil, err
	}
	o.Rejected = slices.DeleteFunc(o.Rejected, func(t history.Token) bool { return t.Rejected == 0 })
	o.Admitted = slices.DeleteFunc(o.Admitted, func(t history.Token) bool { return t.Ops == 0 })
	if o.Ever, err = d.History.Sum(ctx); err != nil {
		return nil, err
	}
	return &view{Title: "Overview", Template: "overview", Live: true, Data: o}, nil
}

func (d *Dashboard) totalFigures(r *request) (*figures, error) {
	only, err := resources(r.URL.Query())
	if err != nil {
		return nil, err
	}
	return readFigures(r, func(s history.Span) ([]history.Point, error) {
		return d.History.TotalUsage(r.Context(), s, only...)
	})
}

// resourceRow is a resource's share of a token's usage.
type resourceRow struct {
	Resource string
	Sum      usage.Totals
	Spark    string // points of a polyline, sparkWidth by sparkHeight
}

const (
	sparkWidth  = 120
	sparkHeight = 20
	// maxResources bounds how many resources of a token are read for a page; more
	// than these are counted, not shown.
	maxResources = 30
)

type tokenView struct {
	Token     history.Token
	Figures   *figures
	Only      string // the resource that is shown alone
	Filtered  bool
	Resources []resourceRow
	Hidden    int // resources that are not shown
	Events    []history.Event
}

// Hidden64 is Hidden, for plural.
func (v tokenView) Hidden64() int64 { return int64(v.Hidden) }

// parseToken reads the token that a page is about.
func parseToken(r *request) (token.ID, error) {
	return token.Parse(r.URL.Query().Get("t"))
}

func (d *Dashboard) token(r *request) (*view, error) {
	ctx := r.Context()
	id, err := parseToken(r)
	if err != nil {
		return nil, err
	}
	v := tokenView{}
	if v.Token, err = d.History.Token(ctx, id); err != nil {
		return nil, err
	}
	if v.Figures, err = d.tokenFigures(r, id); err != nil {
		return nil, err
	}
	if only, err := resources(r.URL.Query()); err == nil && only != nil {
		v.Only, v.Filtered = only[0], true
	}
	names, err := d.History.Resources(ctx, id)
	if err != nil {
		return nil, err
	}
	if len(names) > maxResources {
		v.Hidden, names = len(names)-maxResources, names[:maxResources]
	}
	for _, name := range names {
		points, err := d.History.Usage(ctx, id, v.Figures.Span.Span, name)
		if err != nil {
			return nil, err
		}
		row := resourceRow{Resource: name, Sum: sum(points)}
		values := make([]int64, len(points))
		for i, p := range points {
			values[i] = p.Admitted + p.Rejected
		}
		row.Spark = chart.Spark(values, sparkWidth, sparkHeight)
		v.Resources = append(v.Resources, row)
	}
	slices.SortStableFunc(v.Resources, func(a, b resourceRow) int { return cmp.Compare(b.Sum.Admitted, a.Sum.Admitted) })
	if v.Events, _, err = d.History.Events(ctx, history.EventPage{Token: id, Limit: 20}); err != nil {
		return nil, err
	}
	return &view{Title: id.Text(), Template: "token", Live: true, Data: v}, nil
}

// Total is what all shown resources add up to.
func (v tokenView) Total() usage.Totals {
	var t usage.Totals
	for _, r := range v.Resources {
		t.Admitted += r.Sum.Admitted
		t.Rejected += r.Sum.Rejected
		t.Refunded += r.Sum.Refunded
	}
	return t
}

func (d *Dashboard) tokenFigures(r *request, id token.ID) (*figures, error) {
	only, err := resources(r.URL.Query())
	if err != nil {
		return nil, err
	}
	return readFigures(r, func(s history.Span) ([]history.Point, error) {
		return d.History.Usage(r.Context(), id, s, only...)
	})
}

type namedPolicy struct {
	Name    string
	Default bool
	config.Policy
}

// policies are shown with the default one first, then those that have limits.
func (d *Dashboard) policies(*request) (*view, error) {
	p := d.Policies()
	var list []namedPolicy
	for name, policy := range p.ByName {
		list = append(list, namedPolicy{name, name == p.Default, policy})
	}
	rank := func(n namedPolicy) int {
		switch {
		case n.Default:
			return 0
		case len(n.Limits) > 0:
			return 1
		}
		return 2
	}
	slices.SortFunc(list, func(a, b namedPolicy) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Name, b.Name))
	})
	return &view{Title: "Policies", Template: "policies", Data: list}, nil
}

type auditView struct {
	Events []history.Event
	Next   string
	First  string
}

func eventPage(r *request) (history.EventPage, error) {
	q := r.URL.Query()
	page := history.EventPage{Kind: q.Get("kind"), Limit: defaultLimit, After: q.Get("after")}
	if text := q.Get("t"); text != "" {
		id, err := token.Parse(text)
		if err != nil {
			return page, err
		}
		page.Token = id
	}
	return page, nil
}

func (d *Dashboard) audit(r *request) (*view, error) {
	page, err := eventPage(r)
	if err != nil {
		return nil, err
	}
	events, next, err := d.History.Events(r.Context(), page)
	if err != nil {
		return nil, err
	}
	v := auditView{Events: events}
	if next != "" {
		v.Next = r.With("after", next)
	}
	if page.After != "" {
		v.First = r.With()
	}
	return &view{Title: "Audit", Template: "audit", Live: true, Data: v}, nil
}
