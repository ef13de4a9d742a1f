// Describes the ACLs of a principal with franz-go and prints each as one line.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

func main() {
	if len(os.Args) != 5 {
		fmt.Fprintln(os.Stderr, "usage: describe_acls BOOTSTRAP USER PASSWORD PRINCIPAL")
		os.Exit(2)
	}
	login := scram.Auth{User: os.Args[2], Pass: os.Args[3]}
	client, err := kgo.NewClient(kgo.SeedBrokers(os.Args[1]), kgo.SASL(login.AsSha256Mechanism()))
	fail(err)
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	wanted := kadm.NewACLs().AnyResource().ResourcePatternType(kadm.ACLPatternAny).
		Allow(os.Args[4]).AllowHosts().Operations(kadm.OpAny)
	results, err := kadm.NewClient(client).DescribeACLs(ctx, wanted)
	fail(err)
	for _, result := range results {
		fail(result.Err)
		for _, acl := range result.Described {
			fmt.Println(acl.Type, acl.Name, acl.Pattern, acl.Principal, acl.Host, acl.Operation, acl.Permission)
		}
	}
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
