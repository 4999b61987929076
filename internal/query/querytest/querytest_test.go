package querytest_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/tallygate/tallygate/internal/query"
	"github.com/tallygate/tallygate/internal/query/querytest"
)

// slice answers from a slice.
type slice []query.Row

func (s slice) Search(_ context.Context, q query.Query, now time.Time) (query.Page, error) {
	return querytest.Search(s, q, now)
}

func (s slice) Groups(_ context.Context, q query.Query, by query.Field, now time.Time) ([]query.Group, error) {
	if by != "" && !by.CanGroup() {
		return nil, fmt.Errorf("%w: %s", query.ErrField, by)
	}
	return querytest.Groups(s, q, by, now), nil
}

func TestThePlainestSourcePasses(t *testing.T) {
	querytest.Run(t, querytest.Options{Keeps: query.Fields}, func(_ *testing.T, rows []query.Row) query.Source { return slice(rows) })
}
