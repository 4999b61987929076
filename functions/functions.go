// Package functions holds what runs inside Redis by itself: limiter.js, for the
// servers that have triggers and functions (Redis Stack 7.2 and 7.4).
package functions

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Limiter is the library's source.
//
//go:embed limiter.js
var Limiter string

// Name is the library's name in the server.
const Name = "limiter"

// ErrUnsupported is returned where the server has no triggers and functions.
var ErrUnsupported = errors.New("the server has no triggers and functions (Redis Stack 7.2 and 7.4 have them); " +
	"nothing is lost without: the tracker keeps the same account from outside")

// Config is what limiter.js is loaded with; it must be what the tracker uses.
type Config struct {
	Namespace  string
	Grace      time.Duration
	SeriesSpan int // minutes
}

// Load puts limiter.js on every master, in place of an earlier version of it.
func Load(ctx context.Context, client redis.UniversalClient, config Config) error {
	settings, err := json.Marshal(map[string]any{
		"namespace": config.Namespace, "grace": int64(config.Grace / time.Second), "span": config.SeriesSpan,
	})
	if err != nil {
		return fmt.Errorf("load %s: %w", Name, err)
	}
	return each(ctx, client, "load "+Name, func(ctx context.Context, node redis.UniversalClient) error {
		return node.Do(ctx, "TFUNCTION", "LOAD", "REPLACE", "CONFIG", string(settings), Limiter).Err()
	})
}

// Delete removes limiter.js from every master.
func Delete(ctx context.Context, client redis.UniversalClient) error {
	return each(ctx, client, "delete "+Name, func(ctx context.Context, node redis.UniversalClient) error {
		return node.Do(ctx, "TFUNCTION", "DELETE", Name).Err()
	})
}

// List returns the names of the libraries that the server (of a Cluster: any
// master) has.
func List(ctx context.Context, client redis.UniversalClient) ([]string, error) {
	reply, err := client.Do(ctx, "TFUNCTION", "LIST").Slice()
	if err != nil {
		return nil, describe("list libraries", err)
	}
	var names []string
	for _, library := range reply {
		names = append(names, nameOf(library))
	}
	return names, nil
}

// nameOf reads the name of a library as either version of the protocol has it.
func nameOf(library any) string {
	switch l := library.(type) {
	case map[any]any:
		name, _ := l["name"].(string)
		return name
	case []any:
		for i := 0; i+1 < len(l); i += 2 {
			if l[i] == "name" {
				name, _ := l[i+1].(string)
				return name
			}
		}
	}
	return ""
}

func each(ctx context.Context, client redis.UniversalClient, what string, call func(context.Context, redis.UniversalClient) error) error {
	var err error
	if cluster, ok := client.(*redis.ClusterClient); ok {
		err = cluster.ForEachMaster(ctx, func(ctx context.Context, master *redis.Client) error { return call(ctx, master) })
	} else {
		err = call(ctx, client)
	}
	if err != nil {
		return describe(what, err)
	}
	return nil
}

func describe(what string, err error) error {
	if strings.Contains(strings.ToLower(err.Error()), "unknown command") {
		return fmt.Errorf("%s: %w", what, ErrUnsupported)
	}
	return fmt.Errorf("%s: %w", what, err)
}
