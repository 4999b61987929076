package search

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/RediSearch/redisearch-go/v2/redisearch"
	"github.com/gomodule/redigo/redis"
	goredis "github.com/redis/go-redis/v9"
)

// client is the wall around redisearch-go: the only place that knows it, or redigo
// below it.
//
// The pool is ours, as theirs knows neither TLS nor timeouts nor users; it dials as
// the rest of Tallygate does, by the options of a go-redis client. FT.CREATE is ours, as theirs puts SORTABLE where the server refuses it and has no UNF.
// Queries are built by them and sent by us: their call loses the server's errors
// and knows no TIMEOUT. What they panic at becomes an error.
type client struct {
	pool    *redis.Pool
	timeout time.Duration
}

// newClient returns a client of the server that like talks to; it takes from it
// where that is, how to dial and as whom.
func newClient(like goredis.UniversalClient, opts Options) (*client, error) {
	at, err := options(like)
	if err != nil {
		return nil, err
	}
	return &client{
		timeout: opts.Timeout,
		pool: &redis.Pool{
			DialContext: func(ctx context.Context) (redis.Conn, error) { return dial(ctx, at, opts.Timeout) },
			MaxActive:   opts.Connections,
			MaxIdle:     opts.Connections,
			IdleTimeout: time.Minute,
			Wait:        true,
		},
	}, nil
}

// options returns how to reach the server, or the servers, of a client of go-redis;
// each dials, TLS included, and for Sentinels to the master of the moment.
func options(like goredis.UniversalClient) ([]*goredis.Options, error) {
	switch c := like.(type) {
	case *goredis.Client:
		if o := c.Options(); o.DB != 0 {
			return nil, fmt.Errorf("%w: RediSearch looks at database 0 only, and the Redis URL names database %d", ErrUnsuited, o.DB)
		}
		return []*goredis.Options{c.Options()}, nil
	case *goredis.ClusterClient: // any node coordinates
		var all []*goredis.Options
		for _, addr := range c.Options().Addrs {
			node := goredis.NewClient(&goredis.Options{
				Addr: addr, Username: c.Options().Username, Password: c.Options().Password,
				TLSConfig: c.Options().TLSConfig, DialTimeout: c.Options().DialTimeout, Dialer: c.Options().Dialer,
			})
			all = append(all, node.Options())
			if err := node.Close(); err != nil { // it has never connected
				return nil, err
			}
		}
		return all, nil
	}
	return nil, fmt.Errorf("%w: a client that is a %T", ErrUnsuited, like)
}

// dial connects to the first server that answers.
func dial(ctx context.Context, at []*goredis.Options, timeout time.Duration) (_ redis.Conn, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var plain net.Conn
	for _, o := range at {
		if plain, err = o.Dialer(ctx, o.Network, o.Addr); err != nil {
			continue
		}
		conn := redis.NewConn(plain, timeout, timeout)
		if o.Password != "" {
			args := redis.Args{o.Password}
			if o.Username != "" {
				args = redis.Args{o.Username, o.Password}
			}
			if _, err = redis.DoContext(conn, ctx, "AUTH", args...); err != nil {
				_ = conn.Close()
				return nil, err
			}
		}
		return conn, nil
	}
	return nil, err
}

func (c *client) close() error { return c.pool.Close() }

// guard turns a panic inside of redisearch-go into an error, and any error into
// one of this package's. It is deferred.
func guard(err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("%w: redisearch-go: %v", ErrReply, r)
	}
	*err = classify(*err)
}

// classify is the boundary at which errors get their names.
func classify(err error) error {
	if err == nil || errors.Is(err, ErrReply) {
		return err
	}
	var said redis.Error
	if !errors.As(err, &said) {
		return fmt.Errorf("%w: %w", ErrDown, err)
	}
	text := strings.ToLower(string(said))
	has := func(part string) bool { return strings.Contains(text, part) }
	switch {
	case has("unknown command"):
		return fmt.Errorf("%w (it says %.100q)", ErrNoSearch, said)
	case strings.HasPrefix(text, "noperm"):
		return fmt.Errorf("%w (it says %.100q)", ErrDenied, said)
	case has("no such index"), has("unknown index name"), has("index not found"):
		return fmt.Errorf("%w (it says %.100q)", ErrNoIndex, said)
	case has("timeout limit was reached"):
		return ErrTimeout
	case has("loading"), has("masterdown"), has("clusterdown"), has("tryagain"):
		return fmt.Errorf("%w: %w", ErrDown, err)
	}
	return fmt.Errorf("%w: %w", ErrRefused, err)
}

// conn returns a connection of the pool.
func (c *client) conn(ctx context.Context) (redis.Conn, error) {
	conn, err := c.pool.GetContext(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return conn, nil
}

// do sends one command.
func (c *client) do(ctx context.Context, command string, args ...any) (any, error) {
	conn, err := c.conn(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return redis.DoContext(conn, ctx, command, args...)
}

func (c *client) index(name string) *redisearch.Client {
	return redisearch.NewClientFromPool(c.pool, name)
}

// create creates an index; that it exists already is no error.
func (c *client) create(ctx context.Context, index string, schema []any) (err error) {
	defer guard(&err)
	_, err = c.do(ctx, "FT.CREATE", append([]any{index}, schema...)...)
	if said := redis.Error(""); errors.As(err, &said) && strings.Contains(strings.ToLower(string(said)), "already exists") {
		return nil
	}
	return err
}

// info returns the state of an index or of the one behind an alias.
func (c *client) info(ctx context.Context, name string) (s Status, err error) {
	defer guard(&err)
	if err := ctx.Err(); err != nil {
		return Status{}, err
	}
	i, err := c.index(name).Info()
	if err != nil {
		return Status{}, err
	}
	if i.Name == "" {
		return Status{}, fmt.Errorf("%w: FT.INFO names no index", ErrReply)
	}
	return Status{
		Index:    i.Name,
		Tokens:   int64(i.DocCount),
		Complete: !i.IsIndexing && i.PercentIndexed >= 1,
		Failures: int64(i.HashIndexingFailures),
	}, nil
}

// list returns the names of all indexes.
func (c *client) list(ctx context.Context) (names []string, err error) {
	defer guard(&err)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return c.index("").List()
}

// point makes an alias point to an index.
func (c *client) point(ctx context.Context, alias, index string) (err error) {
	defer guard(&err)
	if err := ctx.Err(); err != nil {
		return err
	}
	return c.index(index).AliasUpdate(alias)
}

// drop drops an index and leaves the hashes; that it is gone already is no error.
func (c *client) drop(ctx context.Context, index string) error {
	err := func() (err error) {
		defer guard(&err)
		if err := ctx.Err(); err != nil {
			return err
		}
		return c.index(index).DropIndex(false)
	}()
	if errors.Is(err, ErrNoIndex) {
		return nil
	}
	return err
}

// plan is a question as FT.AGGREGATE takes it, in the order in which it is done.
type plan struct {
	query  string   // of the index
	load   []string // names of fields
	filter string   // an expression over what was loaded; "" for none
	group  *group
	sort   []order
	limit  int // rows
}

type order struct {
	field     string
	ascending bool
}

// group adds up rows by a field, "" for all of them, under the names of the figures.
type group struct {
	by   string
	sums []string
}

// countOf is the name of the number of rows in a group.
const countOf = "tokens"

// aggregate asks an index. A row holds what was loaded and is not missing.
func (c *client) aggregate(ctx context.Context, index string, p plan) (rows []map[string]string, err error) {
	defer guard(&err)
	q := redisearch.NewAggregateQuery().
		SetQuery(redisearch.NewQuery(p.query).SetDialect(2)).
		SetMax(p.limit) // before SortBy, which reads it
	if len(p.load) > 0 {
		q.Load(p.load)
	}
	if p.filter != "" {
		q.Filter(p.filter)
	}
	if g := p.group; g != nil {
		by := redisearch.NewGroupBy()
		if g.by != "" {
			by.AddFields("@" + g.by)
		}
		by.Reduce(redisearch.Reducer{Name: redisearch.GroupByReducerCount, Alias: countOf})
		for _, f := range g.sums {
			by.Reduce(redisearch.Reducer{Name: redisearch.GroupByReducerSum, Args: []string{"@" + f}, Alias: f})
		}
		q.GroupBy(*by)
	}
	var keys []redisearch.SortingKey
	for _, o := range p.sort {
		keys = append(keys, *redisearch.NewSortingKeyDir("@"+o.field, o.ascending))
	}
	q.SortBy(keys).Limit(0, p.limit)
	args := append(redis.Args{index}, q.Serialize()...)
	// We hang up before the server gives up: when it does, it may return what it has
	// got so far without saying that this is not all.
	args = append(args, "TIMEOUT", (2 * c.timeout).Milliseconds())
	reply, err := redis.Values(c.do(ctx, "FT.AGGREGATE", args...))
	if err != nil {
		return nil, err
	}
	if len(reply) == 0 {
		return nil, fmt.Errorf("%w: it is empty", ErrReply)
	}
	rows = make([]map[string]string, 0, len(reply)-1)
	for _, r := range reply[1:] { // the first element counts something else
		row, err := pairs(r)
		if err != nil {
			return nil, err
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// pairs reads the names and values of a row.
func pairs(reply any) (map[string]string, error) {
	if err, ok := reply.(redis.Error); ok {
		return nil, err
	}
	values, err := redis.Values(reply, nil)
	if err != nil || len(values)%2 != 0 {
		return nil, fmt.Errorf("%w: a row is %T of %d elements", ErrReply, reply, len(values))
	}
	row := make(map[string]string, len(values)/2)
	for i := 0; i < len(values); i += 2 {
		name, err := redis.String(values[i], nil)
		if err != nil {
			return nil, fmt.Errorf("%w: the name of a field: %w", ErrReply, err)
		}
		if values[i+1] == nil {
			continue
		}
		if row[name], err = redis.String(values[i+1], nil); err != nil {
			return nil, fmt.Errorf("%w: field %.32s: %w", ErrReply, name, err)
		}
	}
	return row, nil
}
