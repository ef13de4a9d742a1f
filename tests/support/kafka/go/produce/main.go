// Produces records with franz-go until a file is there, and prints how many were acknowledged, and
// how often the client was told to bootstrap anew (KIP-1242).
package main

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

func main() {
	if len(os.Args) != 6 {
		fmt.Fprintln(os.Stderr, "usage: produce BOOTSTRAP USER PASSWORD TOPIC UNTIL")
		os.Exit(2)
	}
	bootstrap, topic, until := os.Args[1], os.Args[4], os.Args[5]
	login := scram.Auth{User: os.Args[2], Pass: os.Args[3]}
	var acknowledged, rebootstraps atomic.Int64
	client, err := kgo.NewClient(
		kgo.SeedBrokers(bootstrap),
		kgo.SASL(login.AsSha256Mechanism()),
		kgo.RecordPartitioner(kgo.RoundRobinPartitioner()),
		kgo.MetadataMinAge(100*time.Millisecond),
		kgo.OnRebootstrapRequired(func() ([]string, error) {
			rebootstraps.Add(1)
			return []string{bootstrap}, nil
		}),
	)
	fail(err)
	defer client.Close()
	for {
		if _, err := os.Stat(until); err == nil {
			break
		}
		record := &kgo.Record{Topic: topic, Value: []byte("x")}
		client.Produce(context.Background(), record, func(_ *kgo.Record, err error) {
			fail(err)
			acknowledged.Add(1)
		})
		time.Sleep(2 * time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	fail(client.Flush(ctx))
	fmt.Println(acknowledged.Load(), rebootstraps.Load())
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
