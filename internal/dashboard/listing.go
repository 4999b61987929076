package dashboard

import (
	"context"
	"fmt"
	"time"

	"github.com/tallygate/tallygate/internal/history"
	"github.com/tallygate/tallygate/internal/query"
)

// listing answers queries that filter nothing, from the history's own lists.
type listing struct{ history History }

func (l listing) Search(ctx context.Context, q query.Query, _ time.Time) (query.Page, error) {
	if len(q.Match)+len(q.Compare) > 0 {
		return query.Page{}, fmt.Errorf("%w: this indexer lists all tokens and filters none", query.ErrField)
	}
	order, err := history.ParseSort(q.Sort.String())
	if err != nil {
		return query.Page{}, fmt.Errorf("%w: the history keeps no order by %s", query.ErrField, q.Sort.Field)
	}
	list, next, err := l.history.Tokens(ctx, history.Page{Sort: order, Limit: q.Limit, After: q.After})
	if err != nil {
		return query.Page{}, err
	}
	page := query.Page{Next: next}
	for _, t := range list {
		page.Rows = append(page.Rows, query.Row{
			Token: t.ID, Ops: t.Ops, Rejected: t.Rejected, Refunded: t.Refunded, First: t.First, Last: t.Last,
			Status: query.StatusActive,
		})
	}
	return page, nil
}

func (listing) Groups(context.Context, query.Query, query.Field, time.Time) ([]query.Group, error) {
	return nil, query.ErrField
}
