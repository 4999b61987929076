package search

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/tallygate/tallygate/internal/query"
)

// Unanswered reports whether an error means that the index cannot answer now and
// another source should be asked: there is no search, no right to it, no index yet,
// no server, or it takes too long. A wrong question is as wrong elsewhere.
func Unanswered(err error) bool {
	for _, reason := range []error{ErrNoSearch, ErrDenied, ErrNoIndex, ErrTimeout, ErrDown} {
		if errors.Is(err, reason) {
			return true
		}
	}
	return false
}

// Prefer returns a source that asks index, and history when index has no answer.
// Cursors of the one go on in the other. What only the index keeps (percent, say)
// is an error of history's then, which wraps query.ErrField. When it changes who
// answers, log gets one line.
func Prefer(index, history query.Source, log *slog.Logger) query.Source {
	return &preferring{index: index, history: history, log: log}
}

type preferring struct {
	index, history query.Source
	log            *slog.Logger
	away           atomic.Bool // the index had no answer last time
}

func (p *preferring) Search(ctx context.Context, q query.Query, now time.Time) (query.Page, error) {
	page, err := p.index.Search(ctx, q, now)
	if p.instead(ctx, err) {
		return p.history.Search(ctx, q, now)
	}
	return page, err
}

func (p *preferring) Groups(ctx context.Context, q query.Query, by query.Field, now time.Time) ([]query.Group, error) {
	groups, err := p.index.Groups(ctx, q, by, now)
	if p.instead(ctx, err) {
		return p.history.Groups(ctx, q, by, now)
	}
	return groups, err
}

// instead reports whether the history is to answer instead of an index that said err.
func (p *preferring) instead(ctx context.Context, err error) bool {
	if ctx.Err() != nil {
		return false // the caller has left
	}
	away := Unanswered(err)
	if p.away.Swap(away) != away {
		if away {
			p.log.Warn("queries are answered by the history", "reason", err)
		} else {
			p.log.Info("queries are answered by the search index")
		}
	}
	return away
}
