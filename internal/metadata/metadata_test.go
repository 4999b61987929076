package metadata_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/tallygate/tallygate/internal/metadata"
	"github.com/tallygate/tallygate/internal/redistest"
	"github.com/tallygate/tallygate/internal/token"
)

func ExampleMeta_Add() {
	var m metadata.Meta
	m = m.Add(metadata.Move{Minute: 10, Admitted: 5, At: 601})
	m = m.Add(metadata.Move{Minute: 11, Admitted: 2, Rejected: 1, At: 665})
	fmt.Println("ops", m.Ops, "rejected", m.Rejected, "first", m.First, "last", m.Last)
	fmt.Println("rate", m.Rate, "in minute", m.Minute, "peak", m.Peak, "in minute", m.PeakMinute)
	// Output:
	// ops 7 rejected 1 first 601 last 665
	// rate 2 in minute 11 peak 5 in minute 10
}

func TestHashIsReadBack(t *testing.T) {
	want := metadata.Meta{Ops: 1 << 52, Rejected: 2, Refunded: 3, First: 4, Last: 5, Minute: 6, Rate: 7, Peak: 8, PeakMinute: 9}
	hash := want.Hash("t")
	hash["owner"] = "somebody"
	if got, err := metadata.Parse(hash); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := metadata.Parse(map[string]string{"ops": "many"}); !errors.Is(err, metadata.ErrMalformed) {
		t.Errorf("Parse = %v", err)
	}
}

// The script and Add are the same arithmetic; the hash that the script leaves is
// the one that Hash describes.
func TestLuaAgreesWithAdd(t *testing.T) {
	client := redistest.Start(t).Client()
	ctx := context.Background()
	script := redis.NewScript(metadata.Lua + `
		local moves = {}
		for i = 1, #ARGV, 5 do
			local move = {}
			for j = 0, 4 do
				move[j + 1] = tonumber(ARGV[i + j])
			end
			moves[#moves + 1] = move
		end
		metadata_move(KEYS[1], moves)`)
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		id := token.ID(fmt.Sprintf("a:%d", n))
		var want metadata.Meta
		for range rapid.IntRange(1, 8).Draw(t, "calls") {
			var args []any
			units := rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(1, 100), rapid.Just(int64(1)<<40))
			minute := int64(29_000_000)
			for range rapid.IntRange(1, 4).Draw(t, "moves") {
				minute += rapid.Int64Range(0, 2).Draw(t, "later")
				m := metadata.Move{
					Minute:   minute - rapid.Int64Range(0, 1).Draw(t, "late"),
					Admitted: units.Draw(t, "admitted"), Rejected: units.Draw(t, "rejected"), Refunded: units.Draw(t, "refunded"),
				}
				minute = max(minute, m.Minute)
				if len(args) > 0 {
					m.Minute = max(m.Minute, args[len(args)-5].(int64)) // in order, as Add wants it
				}
				m.At = 60*m.Minute + rapid.Int64Range(0, 59).Draw(t, "second")
				want = want.Add(m)
				args = append(args, m.Minute, m.Admitted, m.Rejected, m.Refunded, m.At)
			}
			if err := script.Run(ctx, client, []string{metadata.Key("api", id)}, args...).Err(); err != nil && !errors.Is(err, redis.Nil) {
				t.Fatal(err)
			}
		}
		got, err := client.HGetAll(ctx, metadata.Key("api", id)).Result()
		if err != nil {
			t.Fatal(err)
		}
		if expected := want.Hash(id); want != (metadata.Meta{}) && fmt.Sprint(got) != fmt.Sprint(expected) {
			t.Fatalf("got  %v\nwant %v", got, expected)
		}
	})
}

func TestReadKeepsTheOrderAndKnowsNothingOfStrangers(t *testing.T) {
	client := redistest.Start(t).Client()
	ctx := context.Background()
	client.HSet(ctx, metadata.Key("api", "b"), "ops", 2)
	metas, err := metadata.Read(ctx, client, "api", "a", "b")
	if err != nil || metas[0] != (metadata.Meta{}) || metas[1].Ops != 2 {
		t.Errorf("%+v, %v", metas, err)
	}
}
