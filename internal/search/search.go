// Package search answers queries about tokens from RediSearch, which keeps an
// index on the metadata hashes {api:T}:data.
//
//	index     what RediSearch keeps; its name ends with the version of its schema
//	alias     the name that is asked; it points to the index that is complete
//	window    a range of the figure that is sorted by, just wide enough for a page
//
// The index follows the hashes by itself: nothing is written here. A new version
// of the schema becomes a second index beside the first; the alias moves when
// RediSearch has caught up, so whoever asks notices nothing (Migrate).
//
// A worked example. The hundred most used of a million tokens:
//
//	ops in [0, ∞)        at least 1000: too many to sort
//	ops in [94906265, ∞) none
//	ops in [9742, ∞)     412, enough for the page
//	those 412            sorted by ops and token, the first hundred
//
// RediSearch stops counting a window at a thousand rows, so that a page costs a few
// milliseconds however many tokens there are.
package search

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallygate/tallygate/internal/query"
)

// Errors of this package; they are wrapped with what was asked. After one of the
// first five another source may answer: see Unanswered.
var (
	ErrNoSearch = errors.New("the Redis server has no search: load the RediSearch module, or use Redis 8 or Redis Stack; without it the history answers")
	ErrNoIndex  = errors.New("there is no search index (yet): the indexer makes it when it starts, and the history answers meanwhile")
	ErrDenied   = errors.New("the Redis user may not search: grant it +ft.create +ft.info +ft._list +ft.aliasupdate +ft.dropindex +ft.aggregate")
	ErrTimeout  = errors.New("the search took too long")
	ErrDown     = errors.New("the search server does not answer")
	ErrRefused  = errors.New("the search server refuses")
	ErrReply    = errors.New("the search server's reply cannot be understood")
	ErrUnsuited = errors.New("the Redis connection is not suited for search")
)

// Options of Open. The zero value of each field stands for its default.
type Options struct {
	// Namespace of the metadata, overriding the default "api".
	Namespace string
	// Timeout bounds each call: dial, and a query. Default 5s. The server is told to
	// give up later than that, as it may pass off half an answer as whole.
	Timeout time.Duration
	// Connections at most at a time; further callers wait. Default 8.
	Connections int
	// Poll is the pause between two looks at an index that is being built. Default 200ms.
	Poll time.Duration
}

// Index answers queries. It is safe for concurrent use; Close it.
type Index struct {
	client *client
	alias  string
	prefix string // of the keys that are indexed
	poll   time.Duration
	// Counting a window stops at least rows, or at slack times those of the page.
	least, slack int

	mu    sync.Mutex
	hints map[query.Sort]int64 // where the last window of an order began
}

var _ query.Source = (*Index)(nil)

// Open returns the index of the server that redis talks to: a server, the master of
// Sentinels, or a Cluster, of which any node will do. It uses that client's address
// and credentials and makes connections of its own, later. The error wraps
// ErrUnsuited.
func Open(redis redis.UniversalClient, opts Options) (*Index, error) {
	if opts.Namespace == "" {
		opts.Namespace = "api"
	}
	if opts.Timeout <= 0 {
		opts.Timeout = 5 * time.Second
	}
	if opts.Connections <= 0 {
		opts.Connections = 8
	}
	if opts.Poll <= 0 {
		opts.Poll = 200 * time.Millisecond
	}
	c, err := newClient(redis, opts)
	if err != nil {
		return nil, err
	}
	return &Index{
		client: c,
		alias:  "tallygate:" + opts.Namespace + ":tokens",
		prefix: "{" + opts.Namespace + ":",
		poll:   opts.Poll,
		least:  1000,
		slack:  10,
		hints:  make(map[query.Sort]int64),
	}, nil
}

// Close closes all connections.
func (x *Index) Close() error { return x.client.close() }

// Status is the state of the index that is asked.
type Status struct {
	Index    string // its name, with the version
	Tokens   int64
	Complete bool // false while it is being built
	// Failures counts hashes that were not indexed because a figure in them is none.
	Failures int64
}

// Status returns the state of the index. The error wraps ErrNoSearch when the
// server has no search, and ErrNoIndex when nothing has been made there yet.
func (x *Index) Status(ctx context.Context) (Status, error) {
	s, err := x.client.info(ctx, x.alias)
	if err != nil {
		return Status{}, fmt.Errorf("look at the search index: %w", err)
	}
	return s, nil
}
