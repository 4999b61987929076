package dashboard

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/tallygate/tallygate/internal/query"
)

const maxLimit = 500

// tokensView is a page of the tokens that match a query.
type tokensView struct {
	query.Page
	Query   string // as it was typed
	Problem *query.Error
	Unknown string // what the source cannot be asked
	Sort    string
	Limit   int
	Found   int64  // tokens that match in all, 0 when that was not counted
	Next    string // URL of the next page, "" on the last
	First   string // URL of the first page, "" on it
	Most    int64  // the highest ops on this page
	Facets  []facet
	// Policies and Owners say whether any row of the page has one.
	Policies, Owners bool
}

// facet is a field by whose values the answer can be narrowed.
type facet struct {
	Field  query.Field
	Groups []facetGroup
}

type facetGroup struct {
	query.Group
	URL string
	On  bool // the answer is narrowed to it already; the URL undoes that
}

// maxFacetValues bounds how many values of a field are offered.
const maxFacetValues = 8

// tokenQuery reads which page of which tokens is asked for. A query that cannot
// be understood is a *query.Error.
func tokenQuery(r *request) (query.Query, error) {
	p := r.URL.Query()
	q, err := query.Parse(p.Get("q"))
	if err != nil {
		return q, err
	}
	if s := p.Get("sort"); s != "" {
		if q.Sort, err = query.ParseSort(s); err != nil {
			return q, err
		}
	}
	q.Limit, q.After = defaultLimit, p.Get("after")
	if s := p.Get("limit"); s != "" {
		if q.Limit, err = strconv.Atoi(s); err != nil || q.Limit < 1 || q.Limit > maxLimit {
			return q, badInput(fmt.Sprintf("limit must be a number from 1 to %d.", maxLimit))
		}
	}
	return q, nil
}

func (d *Dashboard) tokens(r *request) (*view, error) {
	v := tokensView{Query: strings.TrimSpace(r.Param("q"))}
	shown := &view{Title: "Tokens", Template: "tokens", Live: true}
	q, err := tokenQuery(r)
	if errors.As(err, &v.Problem) {
		shown.Data, shown.Status = v, 400
		return shown, nil
	}
	if err != nil {
		return nil, err
	}
	v.Sort, v.Limit = q.Sort.String(), q.Limit
	v.Page, err = d.Search.Search(r.Context(), q, r.Now)
	switch {
	case errors.Is(err, query.ErrField):
		v.Unknown = err.Error()
		shown.Data, shown.Status = v, 400
		return shown, nil
	case err != nil:
		return nil, err
	}
	for _, row := range v.Rows {
		v.Most = max(v.Most, row.Ops)
		v.Policies = v.Policies || row.Policy != ""
		v.Owners = v.Owners || row.Owner != ""
	}
	if v.Page.Next != "" {
		v.Next = r.With("after", v.Page.Next)
	}
	if q.After != "" {
		v.First = r.With()
	}
	if err := d.facets(r, q, &v); err != nil {
		return nil, err
	}
	shown.Data = v
	return shown, nil
}

// facets counts the answer, and the tokens in it by what they can be narrowed to.
func (d *Dashboard) facets(r *request, q query.Query, v *tokensView) error {
	all, err := d.Search.Groups(r.Context(), q, "", r.Now)
	if err != nil && !errors.Is(err, query.ErrField) {
		return err
	}
	if len(all) == 1 {
		v.Found = all[0].Tokens
	}
	for _, field := range []query.Field{query.Policy, query.Owner, query.Status} {
		groups, err := d.Search.Groups(r.Context(), q, field, r.Now)
		if errors.Is(err, query.ErrField) {
			continue
		}
		if err != nil {
			return err
		}
		f := facet{Field: field}
		for _, g := range groups {
			if g.Value == "" || len(f.Groups) == maxFacetValues {
				continue
			}
			f.Groups = append(f.Groups, narrow(r, q, field, g))
		}
		// One value that all tokens share narrows nothing.
		if len(f.Groups) > 1 || len(f.Groups) == 1 && (f.Groups[0].On || f.Groups[0].Tokens < v.Found) {
			v.Facets = append(v.Facets, f)
		}
	}
	return nil
}

// narrow returns a group with the URL of the answer narrowed to it, or widened
// again when it is.
func narrow(r *request, q query.Query, field query.Field, g query.Group) facetGroup {
	only := query.Match{Field: field, Values: []string{g.Value}}
	narrowed := q
	narrowed.Match = nil
	on := false
	for _, m := range q.Match {
		if m.String() == only.String() {
			on = true
			continue
		}
		narrowed.Match = append(narrowed.Match, m)
	}
	if !on {
		narrowed.Match = append(narrowed.Match, only)
	}
	return facetGroup{g, r.With("q", narrowed.String(), "sort", ""), on}
}

// SortURL returns the URL of the list sorted by a column: the highest first, and
// the other way round when it is so already.
func (v tokensView) SortURL(r *request, column string) string {
	first, second := "-"+column, column
	if column == string(query.Token) {
		first, second = second, first
	}
	if v.Sort == first {
		return r.With("sort", second)
	}
	return r.With("sort", first)
}

// AriaSort says how a column is sorted, in the words of aria-sort.
func (v tokensView) AriaSort(column string) string {
	switch v.Sort {
	case column:
		return "ascending"
	case "-" + column:
		return "descending"
	}
	return "none"
}
