// Package sessions has what the programs of the Go libraries share: several logins side by side,
// each with an idempotent producer, a transactional one and a group of one, at an easy pace. It is
// said in tests/support/kafka/sasl_clients.py what all such programs do.
package sessions

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"
)

const (
	plainPartitions            = 2
	roundPause                 = 100 * time.Millisecond
	roundsPerTransaction       = 5
	abortedOf                  = 3
	readOn                     = 60 * time.Second
	Transactional        int32 = plainPartitions // The partition that transactions write.
)

// Login is one item of the file that a program is given.
type Login struct {
	Name      string // client.id, topic, group and transactional id
	Mechanism string
	User      string
	Password  string
	IsToken   bool   // SCRAM with a delegation token
	IsRaw     bool   // SaslHandshake v0, and raw tokens
	TokenFile string // OAUTHBEARER
	Keytab    string // GSSAPI, with the three below
	Krb5Conf  string
	Realm     string
	Service   string // its name and host, with a slash between
	CAFile    string // the authority of the proxy's certificate; empty: without TLS
}

// TLS returns nil for a login without it.
func (l Login) TLS() (*tls.Config, error) {
	if l.CAFile == "" {
		return nil, nil
	}
	certificate, err := os.ReadFile(l.CAFile)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(certificate) {
		return nil, fmt.Errorf("no certificate in %s", l.CAFile)
	}
	return &tls.Config{RootCAs: roots}, nil
}

// Record is one that was read.
type Record struct {
	Partition int32
	Offset    int64
	Value     string
}

// Client is what a library does for a login; every call waits until it is done.
type Client interface {
	Send(partition int32, value string) error
	Transact(isCommitted bool, values ...string) error
	// Read hands over each record, until the context is done, which is no error.
	Read(ctx context.Context, each func(Record) error) error
	Close()
}

// Main runs a program: its arguments are the bootstrap servers, a file (they go on until it is
// there) and a file with the logins.
func Main(connect func(bootstrap string, login Login) (Client, error)) {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: PROGRAM BOOTSTRAP UNTIL LOGINS")
		os.Exit(2)
	}
	text, err := os.ReadFile(os.Args[3])
	var logins []Login
	if err == nil {
		err = json.Unmarshal(text, &logins)
	}
	if err != nil {
		fail(err)
	}
	var group sync.WaitGroup
	for _, login := range logins {
		group.Add(1)
		go func(login Login) {
			defer group.Done()
			client, err := connect(os.Args[1], login)
			if err != nil {
				fail(fmt.Errorf("%s: %w", login.Name, err))
			}
			written, err := run(client, os.Args[2])
			if err != nil {
				fail(fmt.Errorf("%s: %w", login.Name, err))
			}
			numbers, _ := json.Marshal(written)
			fmt.Println(login.Name, string(numbers))
		}(login)
	}
	group.Wait()
}

func run(client Client, until string) ([]int64, error) {
	defer client.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	reader := reader{ended: make(chan error, 1)}
	go func() { reader.ended <- client.Read(ctx, reader.take) }()
	written := make([]int64, plainPartitions+1)
	if err := write(client, written, until); err != nil {
		return nil, fmt.Errorf("write: %w", err)
	}
	for deadline := time.Now().Add(readOn); !reader.hasRead(written); {
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("read %v of %v", reader.next, written)
		}
		select {
		case err := <-reader.ended:
			return nil, fmt.Errorf("read: %w", err)
		case <-time.After(roundPause):
		}
	}
	cancel()
	return written, <-reader.ended
}

type reader struct {
	mutex      sync.Mutex
	next       [plainPartitions + 1]int64
	nextOffset [plainPartitions + 1]int64
	ended      chan error
}

func (r *reader) take(record Record) error {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if record.Offset < r.nextOffset[record.Partition] {
		return nil // Again, as it joined again before it had committed.
	}
	r.nextOffset[record.Partition] = record.Offset + 1
	expected := strconv.FormatInt(r.next[record.Partition], 10)
	if record.Value != expected {
		return fmt.Errorf("partition %d: %s, not %s", record.Partition, record.Value, expected)
	}
	r.next[record.Partition]++
	return nil
}

func (r *reader) hasRead(written []int64) bool {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return slices.Equal(r.next[:], written)
}

func write(client Client, written []int64, until string) error {
	for round := 0; !exists(until); round++ {
		for partition := range written[:plainPartitions] {
			if err := client.Send(int32(partition), take(written, partition)); err != nil {
				return err
			}
		}
		if round%roundsPerTransaction == 0 {
			if err := transact(client, written, round/roundsPerTransaction%abortedOf == 1); err != nil {
				return err
			}
		}
		time.Sleep(roundPause)
	}
	return nil
}

func transact(client Client, written []int64, isAborted bool) error {
	if isAborted {
		return client.Transact(false, "aborted")
	}
	return client.Transact(true, take(written, plainPartitions), take(written, plainPartitions))
}

func take(written []int64, partition int) string {
	number := strconv.FormatInt(written[partition], 10)
	written[partition]++
	return number
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
